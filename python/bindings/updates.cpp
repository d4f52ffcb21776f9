// The steps that the formula of an optimizer takes from its state: a row for each parameter.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "declared_value.h"
#include "init.h"
#include "look_at.h"
#include "stats/update.h"

namespace nb = nanobind;

namespace trainmon {
namespace {

std::optional<double> number_of(PyObject* object) {
  if (object == nullptr) return std::nullopt;
  const std::optional<DeclaredValue> value = value_of(object);
  if (!value || value->type != DeclaredValue::Type::number) return std::nullopt;
  return value->number;
}

// The numbers of a group of an optimizer. What one lacks is noted.
class Numbers {
 public:
  explicit Numbers(nb::dict group) : group_(std::move(group)) {}

  double get(const char* name) { return taken(PyDict_GetItemString(group_.ptr(), name)); }
  double beta(Py_ssize_t place) {
    PyObject* const betas = PyDict_GetItemString(group_.ptr(), "betas");
    const bool has = betas != nullptr && PyTuple_Check(betas) && PyTuple_Size(betas) > place;
    return taken(has ? PyTuple_GetItem(betas, place) : nullptr);
  }
  double taken(PyObject* object) {
    const std::optional<double> number = number_of(object);
    is_complete = is_complete && number;
    return number.value_or(0.0);
  }
  bool is_complete = true;

 private:
  const nb::dict group_;
};

// Tensors of one parameter, and numbers of its state.
struct Parameter {
  std::array<TensorAccess, 3> tensors;  // x, y, s of the formula
  PyObject* step = nullptr;
  PyObject* product = nullptr;

  const TensorView& view(std::size_t i) const { return tensors[i].view; }
};

std::optional<UpdateFormula> formula_of(std::string_view name, const Parameter& of, Numbers& group,
                                        double sign) {
  const TensorView &x = of.view(0), &y = of.view(1), &s = of.view(2);
  UpdateFormula formula;
  group.is_complete = true;
  if (name == "plain") {
    formula = plain_update(x);
  } else if (name == "rmsprop") {
    formula = rmsprop_update(x, s, group.get("eps"));
  } else {
    const double step = group.taken(of.step);
    const double eps = group.get("eps");
    if (!group.is_complete || !(step >= 1.0)) return std::nullopt;
    if (name == "adagrad") {
      formula = adagrad_update(x, s, step, group.get("lr_decay"), eps);
    } else if (name == "adam") {
      formula = adam_update(x, s, step, group.beta(0), group.beta(1), eps);
    } else if (name == "radam") {
      formula = radam_update(x, s, step, group.beta(0), group.beta(1), eps);
    } else {
      formula = nadam_update(x, y, s, step, group.taken(of.product), group.beta(0), group.beta(1),
                             eps, group.get("momentum_decay"));
    }
  }
  if (!group.is_complete) return std::nullopt;
  formula.a *= sign;
  return formula;
}

PyObject* item(const nb::list& list, Py_ssize_t i) {
  return i < PyList_Size(list.ptr()) ? PyList_GetItem(list.ptr(), i) : nullptr;
}

// False: not every tensor that is given can be read here. A quotient of float16 has no bound: its
// divisor may be below the smallest normal number.
bool read_tensors(Parameter& of, const std::array<nb::list, 3>& lists, Py_ssize_t i) {
  for (std::size_t k = 0; k < lists.size(); ++k) {
    PyObject* const tensor = item(lists[k], i);
    if (tensor == nullptr && k > 0) continue;
    if (tensor == nullptr || tensor == Py_None) return false;
    if (read_tensor(tensor, of.tensors[k]) != Access::ok) return false;
    if (k == 2 && of.view(k).dtype == DType::float16) return false;
  }
  return true;
}

std::vector<Py_ssize_t> observe_updates(Monitor& monitor, std::string_view name, nb::dict group,
                                        double sign, const nb::list& series, const nb::list& x,
                                        const nb::list& y, const nb::list& s, const nb::list& steps,
                                        const nb::list& products) {
  std::vector<Py_ssize_t> left;
  Numbers numbers(std::move(group));
  const std::array lists = {x, y, s};
  for (Py_ssize_t i = 0; i < PyList_Size(series.ptr()); ++i) {
    Parameter of;
    of.step = item(steps, i);
    of.product = item(products, i);
    const auto id = static_cast<SeriesId>(PyLong_AsUnsignedLong(item(series, i)));
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    std::optional<UpdateFormula> formula;
    if (read_tensors(of, lists, i)) formula = formula_of(name, of, numbers, sign);
    const auto observe = [&](const TensorView&) { return monitor.observe_update(id, *formula); };
    if (!formula || measured(of.tensors[0], observe) == Observed::refused) left.push_back(i);
  }
  return left;
}

}  // namespace

void init_updates(nb::module_& module) {
  module.def(
      "observe_updates", &observe_updates, nb::arg("core"), nb::arg("formula"), nb::arg("group"),
      nb::arg("sign"), nb::arg("series"), nb::arg("x"), nb::arg("y"), nb::arg("s"),
      nb::arg("steps"), nb::arg("products"),
      "Measures the steps that a formula of stats/update.h takes: plain, adam, nadam, radam, "
      "rmsprop or adagrad, with the values of a group.\nTensors and numbers are lists beside "
      "`series`, empty where the formula has none; what has a gradient for `x` is multiplied "
      "by `sign`.\nReturns the indices of those that gave no row.");
}

}  // namespace trainmon
