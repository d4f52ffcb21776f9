// What the groups of an optimizer say (lr, weight_decay, ...): compared at each step, told when it
// has changed.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <bit>
#include <string>
#include <vector>

#include "declared_value.h"
#include "init.h"
#include "stats/cpu/gather.h"
#include "tensor.h"
#include "trainmon/monitor.h"

namespace nb = nanobind;

namespace trainmon {
namespace {

using Type = DeclaredValue::Type;

constexpr Py_ssize_t kMostParts = 16;  // of a tuple: betas have two
constexpr Py_ssize_t kMostText = 200;  // characters

bool is_same(const DeclaredValue& a, const DeclaredValue& b) {
  return a.type == b.type && a.text == b.text &&
         std::bit_cast<std::uint64_t>(a.number) == std::bit_cast<std::uint64_t>(b.number);
}

bool is_simple(PyObject* value) {
  return PyFloat_CheckExact(value) || PyLong_CheckExact(value) || PyBool_Check(value) ||
         PyUnicode_CheckExact(value) || value == Py_None;
}

// nullopt: too long, or no UTF-8.
std::optional<std::string> text_if_any(PyObject* object) {
  if (PyUnicode_GetLength(object) > kMostText) return std::nullopt;
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(object, &size);
  if (text != nullptr) return std::string(text, static_cast<std::size_t>(size));
  PyErr_Clear();
  return std::nullopt;
}

}  // namespace

std::optional<DeclaredValue> value_of(PyObject* object) {
  DeclaredValue value;
  if (PyFloat_Check(object) || PyLong_Check(object)) {  // bool is an int
    value.number = PyFloat_AsDouble(object);
    if (PyErr_Occurred() == nullptr) return value;
    PyErr_Clear();  // an int beyond every double
    return std::nullopt;
  }
  if (object == Py_None) {
    value.type = Type::text;
    value.text = "None";
    return value;
  }
  if (PyUnicode_Check(object)) {
    std::optional<std::string> text = text_if_any(object);
    if (!text) return std::nullopt;
    value.type = Type::text;
    value.text = std::move(*text);
    return value;
  }
  TensorAccess tensor;
  const Access access = read_tensor(object, tensor);
  if (access == Access::refused) return std::nullopt;
  if (access == Access::ok && element_count(tensor.view) != 1) return std::nullopt;
  if (access == Access::ok) {
    cpu::widen(tensor.view.dtype, tensor.view.data, 1, &value.number);
  } else {
    value.type = Type::unknown;
  }
  return value;
}

namespace {

// One entry of a group and what it was when it was told last.
struct Entry {
  nb::object key;
  nb::object seen;  // itself where it cannot change by itself: the same one needs no second look
  std::vector<DeclaredValue> values;
};

// Of one optimizer; used with the GIL held.
class DeclaredGroups {
 public:
  DeclaredGroups(Monitor& monitor, int optimizer) : monitor_(monitor), optimizer_(optimizer) {}

  // Nothing of a group makes it raise.
  void read(nb::handle groups) {
    if (!PyList_Check(groups.ptr())) return;
    const Py_ssize_t count = PyList_Size(groups.ptr());
    for (Py_ssize_t i = 0; i < count && i < PyList_Size(groups.ptr()); ++i) {
      const nb::object group = nb::borrow(PyList_GetItem(groups.ptr(), i));
      if (!PyDict_Check(group.ptr())) continue;
      if (groups_.size() <= static_cast<std::size_t>(i)) groups_.emplace_back();
      Declared changed;
      read_group(group.ptr(), groups_[static_cast<std::size_t>(i)], changed.values);
      if (changed.values.empty()) continue;
      changed.optimizer = optimizer_;
      changed.group = static_cast<std::int32_t>(i);
      monitor_.declare(std::move(changed));
    }
  }

 private:
  static void read_group(PyObject* group, std::vector<Entry>& entries,
                         std::vector<DeclaredValue>& changed) {
    PyObject *key = nullptr, *value = nullptr;
    Py_ssize_t at = 0;
    std::size_t place = 0;
    while (PyDict_Next(group, &at, &key, &value)) {
      if (!PyUnicode_Check(key) || PyUnicode_CompareWithASCIIString(key, "params") == 0) continue;
      Entry& entry = entry_at(place++, key, entries);
      if (entry.seen.ptr() == value) continue;
      entry.seen = nb::object();
      look_at(entry, value, changed);
    }
  }

  // That of this key, put to this place: the order of a dict that was loaded may be another.
  static Entry& entry_at(std::size_t place, PyObject* key, std::vector<Entry>& entries) {
    if (place < entries.size() && entries[place].key.ptr() == key) return entries[place];
    std::size_t found = place;
    while (found < entries.size() && PyUnicode_Compare(entries[found].key.ptr(), key) != 0) ++found;
    if (found == entries.size()) entries.emplace_back();
    std::swap(entries[found], entries[place]);
    entries[place].key = nb::borrow(key);
    return entries[place];
  }

  static void look_at(Entry& entry, PyObject* value, std::vector<DeclaredValue>& changed) {
    const bool is_tuple = PyTuple_Check(value) != 0, is_list = PyList_Check(value) != 0;
    const nb::object held = nb::borrow(value);
    if (!is_tuple && !is_list) {
      if (take(entry, 0, value, "", changed) && is_simple(value)) entry.seen = held;
      return;
    }
    const Py_ssize_t parts = is_tuple ? PyTuple_Size(value) : PyList_Size(value);
    if (parts > kMostParts) return;
    bool never_changes = is_tuple;
    for (Py_ssize_t i = 0; i < parts && (is_tuple || i < PyList_Size(value)); ++i) {
      PyObject* part = is_tuple ? PyTuple_GetItem(value, i) : PyList_GetItem(value, i);
      const nb::object kept = nb::borrow(part);
      never_changes = never_changes && is_simple(part);
      // Lists of names and of parameters are none of its numbers.
      if (PyUnicode_Check(part) ||
          !take(entry, static_cast<std::size_t>(i), part, "." + std::to_string(i), changed)) {
        return;
      }
    }
    if (never_changes) entry.seen = held;
  }

  // False where it is no value that is recorded.
  static bool take(Entry& entry, std::size_t place, PyObject* object, const std::string& suffix,
                   std::vector<DeclaredValue>& changed) {
    std::optional<DeclaredValue> value = value_of(object);
    if (!value) return false;
    const bool is_new = place >= entry.values.size();
    if (!is_new && is_same(entry.values[place], *value)) return true;
    if (is_new) entry.values.resize(place + 1);
    entry.values[place] = *value;
    std::optional<std::string> name = text_if_any(entry.key.ptr());
    if (!name) return false;
    value->name = std::move(*name) + suffix;
    changed.push_back(std::move(*value));
    return true;
  }

  Monitor& monitor_;
  const int optimizer_;
  std::vector<std::vector<Entry>> groups_;
};

}  // namespace

void init_declared(nb::module_& module) {
  nb::class_<DeclaredGroups>(module, "DeclaredGroups")
      .def(nb::init<Monitor&, int>(), nb::arg("core"), nb::arg("optimizer"), nb::keep_alive<1, 2>())
      .def("read", &DeclaredGroups::read, nb::arg("param_groups"),
           "tells what has changed since the last call, in the open window");
}

}  // namespace trainmon
