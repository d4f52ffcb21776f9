// Binds grad_probe.h: one call measures all gradients of a step.
#include "sinks/grad_probe.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <deque>
#include <vector>

#include "gil.h"
#include "init.h"
#include "parts.h"
#include "tensor.h"

namespace nb = nanobind;

namespace trainmon {
namespace {

nb::list probe_gradients(BoundMonitor& monitor, const nb::list& series, const nb::list& tensors,
                         std::int64_t step) {
  nb::list refused;
  std::deque<TensorAccess> read;  // items point into them
  std::vector<ProbeItem> items;
  for (std::size_t i = 0; i < nb::len(series) && i < nb::len(tensors); ++i) {
    TensorAccess& tensor = read.emplace_back();
    const nb::object object = tensors[i];
    switch (read_tensor(object.ptr(), tensor)) {
      case Access::ok:
        items.push_back({nb::cast<SeriesId>(series[i]), tensor.view});
        break;
      case Access::not_cpu:
        tensor.reason = "not on the CPU";
        [[fallthrough]];
      case Access::refused:
        monitor.refuse(tensor.reason);
        refused.append(nb::make_tuple(i, tensor.reason));
        break;
    }
  }
  const ReleasedGil release;
  monitor.probe(items, step, monitor.grad_probe);
  return refused;
}

}  // namespace

void init_grad_probe(nb::module_& module) {
  module.def("probe_gradients", &probe_gradients, nb::arg("monitor"), nb::arg("series"),
             nb::arg("tensors"), nb::arg("step"),
             "measures what the part grad_probe asks for of each tensor, and hands it to the "
             "writer as one batch;\n[(index, reason), ...] of those that are not measured");
}

}  // namespace trainmon
