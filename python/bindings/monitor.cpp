// Binds monitor.h: the class for what happens rarely, plain fast calls for what happens per tensor.
#include "trainmon/monitor.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <nlohmann/json.hpp>

#include "gil.h"
#include "init.h"
#include "monitor_class.h"

namespace trainmon {
namespace {

Space space_of(std::string_view text) {
  return named(text, {Space::whole, Space::box, Space::flat}, space_name, "space");
}

Replication replication_of(std::string_view text) {
  return named(text,
               {Replication::identical, Replication::disjoint, Replication::partial,
                Replication::independent},
               replication_name, "replication");
}

Moment moment_of(std::string_view text) {
  return named(text,
               {Moment::forward_end, Moment::backward_end, Moment::before_step, Moment::after_step,
                Moment::interval, Moment::alert, Moment::stop},
               moment_name, "moment");
}

Identity identity_of(const std::string& text) {
  Identity identity = identity_from_environment();
  const auto given = nlohmann::json::parse(text);
  identity.rank = given.value("rank", identity.rank);
  identity.world_size = given.value("world_size", identity.world_size);
  identity.run_id = given.value("run_id", identity.run_id);
  identity.restart_count = given.value("restart_count", identity.restart_count);
  identity.model_digest = given.value("model_digest", identity.model_digest);
  if (given.contains("environment")) identity.environment = given["environment"].dump();
  return identity;
}

bool flush(Monitor& monitor, double timeout) {
  bool is_interrupted = false;
  bool is_done = false;
  {
    const ReleasedGil release;
    is_done = monitor.flush(timeout, [&] {
      const HeldGil acquire;
      is_interrupted = PyErr_CheckSignals() != 0;
      return !is_interrupted;
    });
  }
  if (is_interrupted) throw nb::python_error();
  return is_done;
}

}  // namespace

void init_monitor(nb::module_& module) {
  add_fast_calls(module);

  using Ranges = std::vector<std::tuple<std::int64_t, std::int64_t>>;
  nb::class_<Monitor>(module, "_Monitor");
  MonitorClass monitor(module, "Monitor", nb::is_weak_referenceable());
  monitor
      .def(
          "__init__",
          [](BoundMonitor* self, const std::string& config, const std::string& identity,
             const std::string& parts) {
            const Identity who = identity_of(identity);
            new (self) BoundMonitor(config_from_json(config), who, parts_from_json(parts, who));
          },
          nb::arg("config_json"), nb::arg("identity_json") = "{}", nb::arg("parts_json") = "{}")
      .def_prop_ro(
          "handle",
          [](BoundMonitor& self) {
            return nb::steal(PyCapsule_New(static_cast<Monitor*>(&self), kCapsule, nullptr));
          },
          "for the fast calls; keep the Monitor alive beside it")
      .def_prop_ro("directory", [](const Monitor& self) { return self.run().directory.string(); })
      .def_prop_ro("rank", [](const Monitor& self) { return self.run().rank; })
      .def_prop_ro("world_size", [](const Monitor& self) { return self.run().world_size; })
      .def_prop_ro("restart", [](const Monitor& self) { return self.run().restart; })
      .def_prop_ro("run_id", [](const Monitor& self) { return self.run().run_id; })
      .def_prop_ro("config_json", [](const Monitor& self) { return config_to_json(self.config()); })
      .def(
          "add_series",
          [](Monitor& self, std::string kind, std::string name, std::string element,
             std::int32_t chunk, std::int32_t optimizer, std::string_view dtype,
             std::string_view space, const Ranges& ranges, std::vector<std::int64_t> full_shape,
             std::string_view replication) {
            Series series;
            series.kind = std::move(kind);
            series.name = std::move(name);
            series.element = std::move(element);
            series.chunk = chunk;
            series.optimizer = optimizer;
            series.dtype = dtype_of(dtype);
            series.space = space_of(space);
            for (const auto& [begin, end] : ranges) series.ranges.push_back({begin, end});
            series.full_shape = std::move(full_shape);
            series.replication = replication_of(replication);
            return self.add_series(series);
          },
          nb::arg("kind"), nb::arg("name"), nb::arg("element") = "", nb::arg("chunk") = 0,
          nb::arg("optimizer") = 0, nb::arg("dtype") = "float32", nb::arg("space") = "whole",
          nb::arg("ranges") = Ranges(), nb::arg("full_shape") = std::vector<std::int64_t>(),
          nb::arg("replication") = "independent")
      .def("seal", [](Monitor& self, std::string_view moment) { self.seal(moment_of(moment)); })
      .def(
          "settle",
          [](Monitor& self, double timeout) {
            const ReleasedGil release;
            return self.settle(timeout);
          },
          nb::arg("timeout_seconds"))
      .def("flush", flush, nb::arg("timeout_seconds"),
           "raises what a signal handler raises, and nothing else")
      .def("refuse", &Monitor::refuse)
      .def("set_covered", &Monitor::set_covered)
      .def("set_not_covered", &Monitor::set_not_covered)
      .def("part_failed", &Monitor::part_failed)
      .def("know_formula", &Monitor::know_formula, nb::arg("optimizer"))
      .def("set_note", &Monitor::set_note, nb::arg("key"), nb::arg("json_text"))
      .def("follow",
           [](Monitor& self, const std::string& config_json) {
             self.follow(config_from_json(config_json));
           })
      .def("step_timed", &Monitor::step_timed, nb::arg("seconds"), nb::arg("own_seconds"),
           nb::arg("recorded"))
      .def("budget", &Monitor::budget);
  bind_windows(monitor);
  bind_rows(monitor);
  bind_reports(monitor);
  bind_flight(monitor);
}

}  // namespace trainmon
