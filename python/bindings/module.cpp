// The extension module trainmon._core: each area adds its part.
#include "base/console.h"
#include "init.h"
#include "trainmon/version.h"

NB_MODULE(_core, module) {
  module.doc() = "C++ core of trainmon";
  module.attr("__version__") = trainmon::kVersion;
  // Static objects of ours live until the process ends; a leak report at exit would only name them.
  nanobind::set_leak_warnings(false);
  // Without standard error from the start, descriptor 2 is whatever was opened since.
  const nanobind::object console = nanobind::module_::import_("sys").attr("__stderr__");
  if (console.is_none()) trainmon::set_console(-1);
  module.def(
      "write_at_once",
      [](int descriptor, const nanobind::bytes& text) {
        return trainmon::write_at_once(descriptor, {text.c_str(), text.size()});
      },
      nanobind::arg("descriptor"), nanobind::arg("text"),
      "False, instead of an error or a wait, where it is full, closed or broken");
  trainmon::init_stat(module);
  trainmon::init_probe(module);
  trainmon::init_config(module);
  trainmon::init_monitor(module);
  trainmon::init_training(module);
  trainmon::init_forwards(module);
  trainmon::init_gradient_hooks(module);
  trainmon::init_accumulated(module);
  trainmon::init_declared(module);
  trainmon::init_kept_states(module);
  trainmon::init_grad_probe(module);
  trainmon::init_read(module);
  trainmon::init_scan(module);
  trainmon::init_query(module);
  trainmon::init_rows_by_kind(module);
  trainmon::init_answers(module);
  trainmon::init_report(module);
  trainmon::init_push(module);
  trainmon::init_convert(module);
  trainmon::init_directions(module);
  trainmon::init_updates(module);
}
