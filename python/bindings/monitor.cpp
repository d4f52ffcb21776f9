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
#include "states.h"
#include "tensor.h"

namespace nb = nanobind;

namespace trainmon {
namespace {

constexpr const char* kCapsule = "trainmon.monitor";
// Above this many elements the work is long enough for other Python threads to go on meanwhile.
constexpr std::int64_t kReleaseGilAbove = 1 << 16;

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

// --- fast calls: plain CPython, nothing allocated, nothing raised for a tensor's sake

Monitor* monitor_of(PyObject* capsule) {
  return static_cast<Monitor*>(PyCapsule_GetPointer(capsule, kCapsule));
}

// Measures without the GIL when that is worth it.
template <typename Observe>
Observed measured(const TensorAccess& tensor, Observe&& observe) {
  if (element_count(tensor.view) < kReleaseGilAbove) return observe(tensor.view);
  PyThreadState* thread = PyEval_SaveThread();
  const Observed done = observe(tensor.view);
  PyEval_RestoreThread(thread);
  return done;
}

template <typename Observe>
Observed look_at(Monitor& monitor, PyObject* object, Observe&& observe) {
  if (object == Py_None) return Observed::idle;
  TensorAccess tensor;
  switch (read_tensor(object, tensor)) {
    case Access::ok:
      return measured(tensor, observe);
    case Access::not_cpu:
      return Observed::elsewhere;
    case Access::refused:
      monitor.refuse(tensor.reason);
      return Observed::refused;
  }
  return Observed::refused;
}

bool enough(Py_ssize_t given, Py_ssize_t least, Py_ssize_t most, const char* name) {
  if (given >= least && given <= most) return true;
  PyErr_Format(PyExc_TypeError, "%s() takes %zd to %zd arguments, not %zd", name, least, most,
               given);
  return false;
}

PyObject* observe_call(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!enough(count, 3, 4, "observe")) return nullptr;
  Monitor* monitor = monitor_of(args[0]);
  if (monitor == nullptr) return nullptr;
  const auto series = static_cast<SeriesId>(PyLong_AsUnsignedLong(args[1]));
  const auto flags = count > 3 ? static_cast<std::uint32_t>(PyLong_AsUnsignedLong(args[3])) : 0u;
  if (PyErr_Occurred() != nullptr) return nullptr;
  const Observed done = look_at(*monitor, args[2], [&](const TensorView& view) {
    return monitor->observe(series, view, flags);
  });
  return PyLong_FromLong(static_cast<long>(done));
}

PyObject* observe_at_call(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!enough(count, 6, 7, "observe_at")) return nullptr;
  Monitor* monitor = monitor_of(args[0]);
  if (monitor == nullptr) return nullptr;
  const auto series = static_cast<SeriesId>(PyLong_AsUnsignedLong(args[1]));
  const std::int64_t window = PyLong_AsLongLong(args[3]);
  const auto accum = static_cast<std::int32_t>(PyLong_AsLong(args[4]));
  const auto call = static_cast<std::int32_t>(PyLong_AsLong(args[5]));
  const auto flags = count > 6 ? static_cast<std::uint32_t>(PyLong_AsUnsignedLong(args[6])) : 0u;
  if (PyErr_Occurred() != nullptr) return nullptr;
  const Observed done = look_at(*monitor, args[2], [&](const TensorView& view) {
    return monitor->observe_at(series, view, window, accum, call, flags);
  });
  return PyLong_FromLong(static_cast<long>(done));
}

PyObject* sweep_call(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!enough(count, 4, 5, "sweep")) return nullptr;
  Monitor* monitor = monitor_of(args[0]);
  if (monitor == nullptr) return nullptr;
  if (!PyList_Check(args[1]) || !PyList_Check(args[2]) ||
      PyList_GET_SIZE(args[1]) != PyList_GET_SIZE(args[2])) {
    PyErr_SetString(PyExc_TypeError, "sweep() takes two lists of the same length");
    return nullptr;
  }
  const auto flags = count > 4 ? static_cast<std::uint32_t>(PyLong_AsUnsignedLong(args[4])) : 0u;
  if (PyErr_Occurred() != nullptr) return nullptr;
  nb::object elsewhere;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(args[1]) && i < PyList_GET_SIZE(args[2]); ++i) {
    const auto series = static_cast<SeriesId>(PyLong_AsUnsignedLong(PyList_GET_ITEM(args[1], i)));
    if (PyErr_Occurred() != nullptr) return nullptr;
    nb::object value = nb::borrow(PyList_GET_ITEM(args[2], i));
    if (args[3] != Py_None) {
      value = nb::steal(PyObject_GetAttr(value.ptr(), args[3]));
      if (!value.is_valid()) return nullptr;
    }
    const Observed done = look_at(*monitor, value.ptr(), [&](const TensorView& view) {
      return monitor->observe(series, view, flags);
    });
    if (done == Observed::elsewhere) {
      if (!elsewhere.is_valid()) elsewhere = nb::list();
      nb::cast<nb::list>(elsewhere).append(i);
    }
  }
  if (elsewhere.is_valid()) return elsewhere.release().ptr();
  Py_RETURN_NONE;
}

PyMethodDef fast_calls[] = {
    {"observe", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(observe_call)),
     METH_FASTCALL,
     "observe(handle, series, tensor, flags=0) -> int\n\nMeasures one tensor at the open window "
     "and accum of the series' optimizer.\n0 recorded, 1 idle, 2 not on the CPU, 3 refused."},
    {"observe_at", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(observe_at_call)),
     METH_FASTCALL,
     "observe_at(handle, series, tensor, window, accum, call, flags=0) -> int\n\nMeasures one "
     "tensor at a given address."},
    {"sweep", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(sweep_call)),
     METH_FASTCALL,
     "sweep(handle, series, tensors, attribute, flags=0) -> list[int] | None\n\nobserve() for each "
     "pair; with an attribute name, of that attribute of each; None is skipped.\nReturns the "
     "indices of tensors that are not on the CPU."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void init_monitor(nb::module_& module) {
  PyModule_AddFunctions(module.ptr(), fast_calls);

  using Ranges = std::vector<std::tuple<std::int64_t, std::int64_t>>;
  nb::class_<Monitor>(module, "Monitor", nb::is_weak_referenceable())
      .def(
          "__init__",
          [](Monitor* self, const std::string& config, const std::string& identity) {
            new (self) Monitor(config_from_json(config), identity_of(identity));
          },
          nb::arg("config_json"), nb::arg("identity_json") = "{}")
      .def_prop_ro(
          "handle",
          [](Monitor& self) { return nb::steal(PyCapsule_New(&self, kCapsule, nullptr)); },
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
          [](Monitor& self, SeriesId series, std::string_view dtype, std::int64_t window,
             std::int32_t accum, std::int32_t call, std::uint32_t flags) {
            self.add_late_row(series, dtype_of(dtype), window, accum, call, flags);
          },
          nb::arg("series"), nb::arg("dtype"), nb::arg("window"), nb::arg("accum"), nb::arg("call"),
          nb::arg("flags") = 0)
      .def("seal_late", &Monitor::seal_late)
      .def("fulfil", [](Monitor& self, std::int64_t ticket,
                        const States& values) { self.fulfil(ticket, states_of(values)); })
      .def("add_scalar", &Monitor::add_scalar, nb::arg("name"), nb::arg("value"),
           nb::arg("window") = nb::none())
      .def("seal", [](Monitor& self, std::string_view moment) { self.seal(moment_of(moment)); })
      .def("refuse", &Monitor::refuse)
      .def("set_covered", &Monitor::set_covered)
      .def("set_not_covered", &Monitor::set_not_covered)
      .def("part_failed", &Monitor::part_failed)
      .def("set_note", &Monitor::set_note, nb::arg("key"), nb::arg("json_text"))
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
