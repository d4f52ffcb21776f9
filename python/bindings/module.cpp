// The extension module trainmon._core: each area adds its part.
#include "init.h"
#include "trainmon/version.h"

NB_MODULE(_core, module) {
  module.doc() = "C++ core of trainmon";
  module.attr("__version__") = trainmon::kVersion;
  // Static objects of ours live until the process ends; a leak report at exit would only name them.
  nanobind::set_leak_warnings(false);
  trainmon::init_stat(module);
  trainmon::init_probe(module);
  trainmon::init_config(module);
  trainmon::init_monitor(module);
  trainmon::init_forwards(module);
  trainmon::init_gradient_hooks(module);
  trainmon::init_accumulated(module);
  trainmon::init_declared(module);
  trainmon::init_grad_probe(module);
  trainmon::init_tools(module);
  trainmon::init_convert(module);
  trainmon::init_directions(module);
}
