// Binds monitor.h: the class for what happens rarely, plain fast calls for what happens per tensor.
#include "trainmon/monitor.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "init.h"
#include "model/histogram.h"
#include "parts.h"
#include "states.h"
#include "stats/pairs.h"
#include "tensor.h"

namespace nb = nanobind;

namespace trainmon {
namespace {

template <typename Enum, typename Name>
Enum named(std::string_view text, std::initializer_list<Enum> values, Name name, const char* what) {
  std::string valid;
  for (const Enum value : values) {
    if (name(value) == text) return value;
    valid += (valid.empty() ? "" : ", ") + std::string(name(value));
  }
  throw nb::value_error(
      (std::string(what) + " must be one of " + valid + ", not '" + std::string(text) + "'")
          .c_str());
}

Space space_of(std::string_view text) {
  return named(text, {Space::whole, Space::box, Space::flat}, space_name, "space");
}

Replication replication_of(std::string_view text) {
  return named(text,
               {Replication::identical, Replication::disjoint, Replication::partial,
                Replication::independent},
               replication_name, "replication");
}

Fate fate_of(std::string_view text) {
  return named(text, {Fate::taken, Fate::skipped, Fate::unknown}, fate_name, "fate");
}

Moment moment_of(std::string_view text) {
  return named(text,
               {Moment::forward_end, Moment::backward_end, Moment::before_step, Moment::after_step,
                Moment::interval, Moment::alert, Moment::stop},
               moment_name, "moment");
}

DType dtype_of(std::string_view text) {
  if (const auto dtype = dtype_from_name(text)) return *dtype;
  throw nb::value_error(("dtype '" + std::string(text) + "' is not measured").c_str());
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

nb::dict stats_dict(const RowState& state) {
  nb::dict values;
  for (const StatDefinition& line : stat_table()) {
    const double value = derive(line.stat, state);
    const nb::str name(line.name.data(), line.name.size());
    if (line.type == "int64") {
      values[name] = static_cast<std::int64_t>(value);
    } else {
      values[name] = value;
    }
  }
  return values;
}

nb::list latest(const Monitor& monitor) {
  nb::list rows;
  for (const Row& row : monitor.latest()) {
    const Series& series = monitor.series().at(row.key.series);
    rows.append(nb::make_tuple(series.kind, series.name, series.element, series.chunk,
                               series.optimizer, monitor.step_of(series.optimizer, row.key.window),
                               row.key.accum, row.key.call, stats_dict(row.state)));
  }
  return rows;
}

template <typename Map>
nb::dict dict_of(const Map& map) {
  nb::dict values;
  for (const auto& [key, value] : map) values[key.c_str()] = value;
  return values;
}

nb::dict health_dict(const Health& health) {
  nb::dict values;
  nb::list sinks;
  for (const SinkHealth& sink : health.sinks) {
    nb::dict one;
    one["name"] = sink.name;
    one["rows_written"] = sink.rows_written;
    one["rows_deleted"] = sink.rows_deleted;
    one["rows_dropped"] = dict_of(sink.rows_dropped);
    one["degraded"] = sink.degraded;
    sinks.append(one);
  }
  values["rows_produced"] = health.rows_produced;
  values["rows_pending"] = health.rows_pending;
  values["sinks"] = sinks;
  values["refused"] = dict_of(health.refused);
  values["parts_off"] = dict_of(health.parts_off);
  values["errors"] = health.errors;
  values["alerts"] = health.alerts;
  values["queue_bytes_peak"] = health.queue_bytes_peak;
  return values;
}

std::vector<RowState> states_of(const States& values) {
  check_columns(values);
  std::vector<RowState> states(values.shape(0));
  const double* row = values.data();
  for (RowState& state : states) {
    state = read_state(row);
    row += kColumns;
  }
  return states;
}

// --- pairs of tensors -----------------------------------------------------------------------

// Calls look(a, b) where both can be read here; the answer of observe().
template <typename Look>
int look_at_pair(Monitor& monitor, nb::handle a, nb::handle b, Look&& look) {
  TensorAccess first;
  TensorAccess second;
  for (const auto& [object, tensor] : {std::pair(a, &first), std::pair(b, &second)}) {
    switch (read_tensor(object.ptr(), *tensor)) {
      case Access::ok:
        break;
      case Access::not_cpu:
        return static_cast<int>(Observed::elsewhere);
      case Access::refused:
        monitor.refuse(tensor->reason);
        return static_cast<int>(Observed::refused);
    }
  }
  const nb::gil_scoped_release release;
  try {
    return static_cast<int>(look(first.view, second.view));
  } catch (const std::invalid_argument&) {
    return static_cast<int>(Observed::refused);
  }
}

int observe_direction(Monitor& monitor, SeriesId series, nb::handle a, nb::handle b) {
  return look_at_pair(monitor, a, b, [&](const TensorView& x, const TensorView& y) {
    const auto share = static_cast<float>(sign_agreement(x, y));
    return monitor.observe(series, {.data = &share, .dtype = DType::float32});
  });
}

void add_histogram(Monitor& monitor, SeriesId series, const Histogram& histogram) {
  Payload payload;
  payload.type = PayloadType::histogram;
  payload.key.series = series;
  payload.bytes = histogram_bytes(histogram);
  monitor.add_payload(std::move(payload));
}

int add_adam_histograms(Monitor& monitor, SeriesId update, SeriesId ratio, nb::handle exp_avg,
                        nb::handle exp_avg_sq, double step, double beta1, double beta2,
                        double eps) {
  return look_at_pair(monitor, exp_avg, exp_avg_sq, [&](const TensorView& m, const TensorView& v) {
    const AdamHistograms found = adam_histograms(m, v, {step, beta1, beta2, eps});
    add_histogram(monitor, update, found.update);
    add_histogram(monitor, ratio, found.ratio);
    return Observed::recorded;
  });
}

void add_text(Monitor& monitor, SeriesId series, std::string_view text, std::int64_t window,
              std::int32_t accum, std::int32_t call) {
  Payload payload;
  payload.key.series = series;
  payload.key.window = window;
  payload.key.accum = accum;
  payload.key.call = call;
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  payload.bytes.assign(bytes, bytes + text.size());
  monitor.add_payload_at(std::move(payload));
}

nb::object control_of(const Monitor& monitor) {
  const std::optional<ControlChange> change = monitor.control();
  if (!change) return nb::none();
  const Control& control = change->control;
  return nb::make_tuple(control.number, control.on, control.apply_at_step, control.set,
                        config_to_json(change->config));
}

// --- what parts tell ------------------------------------------------------------------------

nb::dict event_dict(const AlertEvent& event) {
  nb::dict values;
  values["rule"] = event.alert.rule;
  values["stat"] = event.alert.stat;
  values["value"] = event.alert.value;
  values["expected"] = event.alert.expected;
  values["step"] = event.alert.step;
  values["count"] = event.alert.count;
  values["message"] = event.alert.message;
  values["kind"] = event.series.kind;
  values["name"] = event.series.name;
  values["element"] = event.series.element;
  values["chunk"] = event.series.chunk;
  values["accum"] = event.alert.key.accum;
  values["call"] = event.alert.key.call;
  return values;
}

nb::tuple pop_alerts(BoundMonitor& monitor, double seconds) {
  std::vector<AlertEvent> events;
  std::int64_t untold = 0;
  if (monitor.alerts != nullptr) {
    const nb::gil_scoped_release release;
    events = monitor.alerts->pop(std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9)),
                                 untold);
  }
  nb::list list;
  for (const AlertEvent& event : events) list.append(event_dict(event));
  return nb::make_tuple(list, untold);
}

nb::list msprobe_tensors(BoundMonitor& monitor, std::string_view kind) {
  nb::list list;
  if (monitor.msprobe == nullptr) return list;
  for (const MsprobeTensor& tensor : monitor.msprobe->tensors(kind)) {
    const std::string_view dtype = dtype_name(tensor.dtype);
    list.append(nb::make_tuple(tensor.tag, stats_dict(tensor.state), tensor.shape,
                               nb::str(dtype.data(), dtype.size())));
  }
  return list;
}

void set_msprobe_ops(BoundMonitor& monitor, const std::vector<std::string>& names) {
  if (monitor.msprobe == nullptr) return;
  std::vector<Stat> stats;
  for (const std::string& name : names) stats.push_back(stat_from_name(name).value());
  monitor.msprobe->set_ops(std::move(stats), monitor.window(0));
}

}  // namespace

void init_monitor(nb::module_& module) {
  add_fast_calls(module);

  using Ranges = std::vector<std::tuple<std::int64_t, std::int64_t>>;
  nb::class_<Monitor>(module, "_Monitor");
  nb::class_<BoundMonitor, Monitor>(module, "Monitor", nb::is_weak_referenceable())
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
      .def("add_optimizer", &Monitor::add_optimizer, nb::arg("start_step") = 0)
      .def("set_start_step", &Monitor::set_start_step)
      .def("window", &Monitor::window)
      .def("step", &Monitor::step)
      .def("recording", &Monitor::recording)
      .def("saw_non_finite", &Monitor::saw_non_finite)
      .def("bad_losses", &Monitor::bad_losses)
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
          nb::arg("optimizer"), nb::arg("window"), nb::arg("fate"), nb::arg("loss_scale") = 1.0)
      .def(
          "add_late_row",
          [](Monitor& self, SeriesId series, std::string_view dtype,
             const std::vector<std::int64_t>& sizes, std::int64_t window, std::int32_t accum,
             std::int32_t call, std::uint32_t flags) {
            self.add_late_row(series, dtype_of(dtype), sizes, window, accum, call, flags);
          },
          nb::arg("series"), nb::arg("dtype"), nb::arg("sizes"), nb::arg("window"),
          nb::arg("accum"), nb::arg("call"), nb::arg("flags") = 0)
      .def("reserve_device", &Monitor::reserve_device, nb::arg("device"), nb::arg("tensors"),
           nb::arg("bytes"), "'' or why tensors of this CUDA device are not measured by kernels")
      .def("seal_late", &Monitor::seal_late)
      .def("fulfil", [](Monitor& self, std::int64_t ticket,
                        const States& values) { self.fulfil(ticket, states_of(values)); })
      .def("add_scalar", &Monitor::add_scalar, nb::arg("name"), nb::arg("value"),
           nb::arg("window") = nb::none())
      .def("seal", [](Monitor& self, std::string_view moment) { self.seal(moment_of(moment)); })
      .def(
          "settle",
          [](Monitor& self, double timeout) {
            const nb::gil_scoped_release release;
            return self.settle(timeout);
          },
          nb::arg("timeout_seconds"))
      .def("observe_direction", &observe_direction, nb::arg("series"), nb::arg("a"), nb::arg("b"),
           "one row with the share of equal signs; answers like observe()")
      .def("add_adam_histograms", &add_adam_histograms, nb::arg("update_series"),
           nb::arg("ratio_series"), nb::arg("exp_avg"), nb::arg("exp_avg_sq"), nb::arg("step"),
           nb::arg("beta1"), nb::arg("beta2"), nb::arg("eps"))
      .def("add_text", &add_text, nb::arg("series"), nb::arg("text"), nb::arg("window"),
           nb::arg("accum"), nb::arg("call"))
      .def("alerts", &pop_alerts, nb::arg("timeout_seconds"),
           "([alert, ...], how many more there were), waiting for the first one")
      .def("msprobe_tensors", &msprobe_tensors)
      .def("set_msprobe_ops", &set_msprobe_ops)
      .def("refuse", &Monitor::refuse)
      .def("set_covered", &Monitor::set_covered)
      .def("set_not_covered", &Monitor::set_not_covered)
      .def("part_failed", &Monitor::part_failed)
      .def("set_note", &Monitor::set_note, nb::arg("key"), nb::arg("json_text"))
      .def("control_versions", &Monitor::control_versions)
      .def("control", &control_of,
           "(number, on, apply_at_step, set, configuration) that control.json asks for, or None")
      .def("follow",
           [](Monitor& self, const std::string& config_json) {
             self.follow(config_from_json(config_json));
           })
      .def("step_timed", &Monitor::step_timed, nb::arg("seconds"), nb::arg("own_seconds"),
           nb::arg("recorded"))
      .def("budget", &Monitor::budget)
      .def("latest", &latest)
      .def("health", [](Monitor& self) { return health_dict(self.health()); })
      .def("stop", [](Monitor& self) {
        Health health;
        {
          const nb::gil_scoped_release release;
          health = self.stop();
        }
        return health_dict(health);
      });
}

}  // namespace trainmon
