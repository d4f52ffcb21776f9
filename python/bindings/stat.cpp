// Binds stat.h: the bare measure, merging and deriving of states, the table of statistics.
#include "trainmon/stat.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "gil.h"
#include "init.h"
#include "states.h"
#include "stats/check_keys.h"
#include "stats/cpu/level.h"
#include "stats/cuda/measure_cuda.h"
#include "tensor.h"

namespace nb = nanobind;

namespace trainmon {
namespace {

using Matrix = nb::ndarray<nb::numpy, double, nb::ndim<2>>;

template <class Array>
Array new_array(std::initializer_list<std::size_t> shape) {
  std::size_t size = 1;
  for (const std::size_t n : shape) size *= n;
  auto* data = new double[std::max<std::size_t>(size, 1)]();
  const nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<double*>(p); });
  return Array(data, shape, owner);
}

// Tensors read while the GIL is held, to be measured while it is not.
struct Batch : TensorViews {
  std::vector<std::size_t> places;  // of each view among the tensors given
  std::vector<nb::object> owners;   // DLPack capsules

  explicit Batch(std::size_t n) {
    views.reserve(n);
    places.reserve(n);
    extents.reserve(4 * n);  // most tensors have two dimensions at most
  }
  void add(TensorAccess& access, std::size_t place) {
    TensorViews::add(access);
    places.push_back(place);
    if (access.owner != nullptr) owners.push_back(nb::steal(std::exchange(access.owner, nullptr)));
  }
};

// (states, elsewhere, refused). `states` has a row per tensor. `elsewhere` has the places of
// tensors on a device without kernels here, whose rows are empty. `refused` has (place, reason)
// of those that cannot be measured.
nb::tuple measure_tensors(const nb::list& tensors, double eps, int threads) {
  std::map<std::pair<int, void*>, Batch> on_devices;  // by device and stream
  nb::list elsewhere, refused;
  const std::size_t n = nb::len(tensors);
  Batch batch(n);
  TensorAccess access;
  for (std::size_t i = 0; i < n; ++i) {
    PyObject* tensor = PyList_GetItem(tensors.ptr(), static_cast<Py_ssize_t>(i));
    switch (read_tensor(tensor, access, true)) {
      case Access::ok:
        batch.add(access, i);
        break;
      case Access::not_cpu:
        if (access.is_complete && cuda_unavailable(access.view.device_index).empty()) {
          on_devices.try_emplace({access.view.device_index, access.view.stream}, n)
              .first->second.add(access, i);
        } else {
          elsewhere.append(i);
        }
        break;
      case Access::refused:
        refused.append(nb::make_tuple(i, access.reason));
        break;
    }
  }
  batch.point_at_extents();
  std::vector<RowState> measured(batch.views.size());
  {
    const ReleasedGil release;
    measure(batch.views, measured, eps, threads);
  }
  auto states = new_array<Matrix>({n, kColumns});
  if (measured.size() < n) {
    for (std::size_t i = 0; i < n; ++i) write_state(RowState{}, states.data() + i * kColumns);
  }
  const auto write = [&](const Batch& from) {
    for (std::size_t i = 0; i < measured.size(); ++i) {
      write_state(measured[i], states.data() + from.places[i] * kColumns);
    }
  };
  write(batch);
  for (auto& [device, tensors_there] : on_devices) {
    tensors_there.point_at_extents();
    measured.assign(tensors_there.views.size(), {});
    {
      const ReleasedGil release;
      measure_cuda(tensors_there.views, measured, eps);
    }
    write(tensors_there);
  }
  return nb::make_tuple(states, elsewhere, refused);
}

// Whether the first row of a CPU tensor is all zero. It tells a cleared gradient from others
// without an operation that a dispatch mode of the user would see. None where it cannot be read.
std::optional<bool> first_row_is_zero(nb::handle tensor) {
  TensorAccess access;
  if (read_tensor(tensor.ptr(), access) != Access::ok) return std::nullopt;
  TensorView row = access.view;
  if (element_count(row) == 0) return true;
  if (row.ndim > 1) {
    row.sizes += row.ndim - 1;
    if (row.strides != nullptr) row.strides += row.ndim - 1;
    row.ndim = 1;
  }
  const RowState state = measure(row);
  return !state.non_finite() && state.absmax == 0;
}

Matrix merge_states(const States& states) {
  check_columns(states);
  RowState merged;
  for (std::size_t i = 0; i < states.shape(0); ++i) {
    merge(merged, read_state(states.data() + i * kColumns));
  }
  auto out = new_array<Matrix>({1, kColumns});
  write_state(merged, out.data());
  return out;
}

// A row per statistic, a column per state.
Matrix derive_states(const std::vector<std::string>& names, const States& states) {
  check_columns(states);
  const std::size_t n = states.shape(0);
  std::vector<Stat> stats;
  for (const std::string& name : names) {
    const std::optional<Stat> stat = stat_from_name(name);
    if (!stat) throw nb::value_error(("'" + name + "' is not a statistic").c_str());
    stats.push_back(*stat);
  }
  auto out = new_array<Matrix>({stats.size(), n});
  for (std::size_t i = 0; i < n; ++i) {
    const RowState state = read_state(states.data() + i * kColumns);
    for (std::size_t j = 0; j < stats.size(); ++j) out.data()[j * n + i] = derive(stats[j], state);
  }
  return out;
}

nb::list table_of_statistics() {
  nb::list lines;
  const auto text = [](std::string_view view) { return nb::str(view.data(), view.size()); };
  for (const StatDefinition& line : stat_table()) {
    nb::dict entry;
    entry["name"] = text(line.name);
    entry["formula"] = text(line.formula);
    entry["type"] = text(line.type);
    entry["with_nan"] = text(line.with_nan);
    entry["with_inf"] = text(line.with_inf);
    entry["empty"] = text(line.empty);
    lines.append(entry);
  }
  return lines;
}

// (name, degree, value without elements) of each column of states.
nb::list state_fields() {
  nb::list fields;
  each_state_field([&](auto field) {
    const auto empty = static_cast<double>(RowState{}.*field.member);
    fields.append(
        nb::make_tuple(nb::str(field.name.data(), field.name.size()), field.degree, empty));
  });
  return fields;
}

std::string level_name(CpuLevel level) {
  return std::string(cpu_level_name(level));
}

void set_level(const std::string& name) {
  const std::optional<CpuLevel> level = cpu_level_from_name(name);
  if (!level) throw nb::value_error("level must be one of baseline, avx2, avx512");
  set_cpu_level(*level);
}

}  // namespace

void init_stat(nb::module_& module) {
  module.attr("DEFAULT_EPS") = kDefaultEps;
  module.def("measure_tensors", &measure_tensors, nb::arg("tensors"), nb::arg("eps"),
             nb::arg("threads"));
  module.def("first_row_is_zero", &first_row_is_zero, nb::arg("tensor"));
  module.def("merge_states", &merge_states, nb::arg("states"));
  module.def("derive", &derive_states, nb::arg("stats"), nb::arg("states"));
  module.def("stat_table", &table_of_statistics);
  nb::list rows, columns;  // lower and upper half of a word in each row; of each column
  for (int i = 0; i < kFingerprintRows; ++i) {
    rows.append(static_cast<int>(kFingerprintLower[i]));
    rows.append(static_cast<int>(kFingerprintUpper[i]));
  }
  for (int i = 0; i < kFingerprintGroups * kFingerprintColumns; ++i) {
    columns.append(fingerprint_column_factor(i));
  }
  module.attr("FINGERPRINT_ROWS") = rows;
  module.attr("FINGERPRINT_COLUMNS") = columns;
  module.attr("CHECK_COLUMNS") = kCheckColumns;
  module.def("state_fields", &state_fields,
             "of each column of states: its name, its degree, its value without elements");
  module.def("cuda_architectures", [] {
    const std::string_view names = cuda_architectures();
    return nb::str(names.data(), names.size());
  });
  module.def("cuda_unavailable", &cuda_unavailable, nb::arg("device") = 0,
             "why tensors of this CUDA device are not measured by kernels; '' when they are");
  module.def("cpu_level", [] { return level_name(cpu_level()); });
  module.def("detected_cpu_level", [] { return level_name(detected_cpu_level()); });
  module.def("set_cpu_level", &set_level, nb::arg("level"));
}

}  // namespace trainmon
