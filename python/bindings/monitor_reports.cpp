// What Monitor tells: rows, alerts, its health, what control.json asks for.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "gil.h"
#include "monitor_class.h"
#include "trainmon/stat.h"

namespace trainmon {
namespace {

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
    one["rows_expired"] = sink.rows_expired;
    one["rows_dropped"] = dict_of(sink.rows_dropped);
    one["degraded"] = sink.degraded;
    sinks.append(one);
  }
  values["rows_produced"] = health.rows_produced;
  values["rows_pending"] = health.rows_pending;
  values["sinks"] = sinks;
  values["refused"] = dict_of(health.refused);
  values["scalars_dropped"] = dict_of(health.scalars_dropped);
  values["parts_off"] = dict_of(health.parts_off);
  values["errors"] = health.errors;
  values["alerts"] = health.alerts;
  values["queue_bytes"] = health.queue_bytes;
  values["queue_bytes_peak"] = health.queue_bytes_peak;
  values["queue_seconds"] = health.queue_seconds;
  return values;
}

nb::object control_of(const Monitor& monitor) {
  const std::optional<ControlChange> change = monitor.control();
  if (!change) return nb::none();
  const Control& control = change->control;
  return nb::make_tuple(control.number, control.on, control.apply_at_step, control.set,
                        config_to_json(change->config));
}

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
    const ReleasedGil release;
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

void bind_reports(MonitorClass& monitor) {
  monitor
      .def("alerts", &pop_alerts, nb::arg("timeout_seconds"),
           "([alert, ...], how many more there were), waiting for the first one")
      .def("msprobe_tensors", &msprobe_tensors)
      .def("set_msprobe_ops", &set_msprobe_ops)
      .def("control_versions", &Monitor::control_versions)
      .def("control", &control_of,
           "(number, on, apply_at_step, set, configuration) that control.json asks for, or None")
      .def("latest", &latest)
      .def("health", [](Monitor& self) { return health_dict(self.health()); })
      .def("stop", [](Monitor& self) {
        Health health;
        {
          const ReleasedGil release;
          health = self.stop();
        }
        return health_dict(health);
      });
}

}  // namespace trainmon
