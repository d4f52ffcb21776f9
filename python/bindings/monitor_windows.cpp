// What Monitor offers around steps: windows, attempts and what became of them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <optional>

#include "model/first_bad.h"
#include "monitor_class.h"

namespace trainmon {
namespace {

Fate fate_of(std::string_view text) {
  return named(text, {Fate::taken, Fate::skipped, Fate::unknown}, fate_name, "fate");
}

}  // namespace

void bind_windows(MonitorClass& monitor) {
  monitor.def("add_optimizer", &Monitor::add_optimizer, nb::arg("start_step") = 0)
      .def("set_start_step", &Monitor::set_start_step)
      .def("window", &Monitor::window)
      .def("step", &Monitor::step)
      .def("recording", &Monitor::recording)
      .def("saw_non_finite", &Monitor::saw_non_finite)
      .def("bad_losses", &Monitor::bad_losses)
      .def("is_loss", [](const Monitor&, std::string_view name) { return is_loss(name); })
      .def("failed_check", &Monitor::failed_check)
      .def("failed_checks", &Monitor::failed_checks)
      .def("has_alert_rules", &Monitor::has_alert_rules)
      .def("on_backward", &Monitor::on_backward)
      .def("accum", &Monitor::accum)
      .def("next_accum", &Monitor::next_accum)
      .def("begin_attempt", &Monitor::begin_attempt)
      .def(
          "end_attempt",
          [](Monitor& self, int optimizer, std::optional<std::string_view> fate,
             double loss_scale) {
            self.end_attempt(optimizer, fate ? std::optional(fate_of(*fate)) : std::nullopt,
                             loss_scale);
          },
          nb::arg("optimizer"), nb::arg("fate").none(), nb::arg("loss_scale") = 1.0)
      .def(
          "abandon_window",
          [](Monitor& self, int optimizer, std::string_view fate, double loss_scale) {
            self.abandon_window(optimizer, fate_of(fate), loss_scale);
          },
          nb::arg("optimizer"), nb::arg("fate"), nb::arg("loss_scale") = 1.0)
      .def(
          "decide",
          [](Monitor& self, int optimizer, std::int64_t window, std::string_view fate,
             double loss_scale) { self.decide(optimizer, window, fate_of(fate), loss_scale); },
          nb::arg("optimizer"), nb::arg("window"), nb::arg("fate"), nb::arg("loss_scale") = 1.0);
}

}  // namespace trainmon
