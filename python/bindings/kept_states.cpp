// What an optimizer keeps of its parameters, by identity: somebody may make that anew between two
// steps. A tensor's object is compared, never its numbers.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <unordered_map>
#include <vector>

#include "init.h"

namespace nb = nanobind;

namespace trainmon {
namespace {

// Of one optimizer; used with the GIL held. Holds no references: an object that is gone is another
// one, unless a new one took its place in memory.
class KeptStates {
 public:
  // What `states` has now. Anything but a dict has nothing.
  void keep(nb::handle states) {
    of_.clear();
    places_.clear();
    objects_.clear();
    if (!PyDict_Check(states.ptr())) return;
    PyObject *key = nullptr, *state = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(states.ptr(), &at, &key, &state);) {
      const std::size_t begin = objects_.size();
      add(state);
      places_.push_back({key, begin, objects_.size()});
    }
  }

  // The states that are others than those kept, or have other entries. Those of which nothing was
  // kept are left out. At the end None, if some are gone and there are fewer.
  nb::list changed(nb::handle states) {
    nb::list found;
    if (!PyDict_Check(states.ptr())) return found;
    const std::size_t end = objects_.size();
    std::size_t at_place = 0, seen = 0;
    PyObject *key = nullptr, *state = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(states.ptr(), &at, &key, &state); ++at_place) {
      const Place* const before = place_of(key, at_place);
      if (before == nullptr) continue;
      ++seen;
      add(state);
      const std::span<PyObject* const> all(objects_);
      const auto was = all.subspan(before->begin, before->end - before->begin);
      const auto is = all.subspan(end);
      const bool is_same = std::equal(was.begin(), was.end(), is.begin(), is.end());
      objects_.resize(end);
      if (!is_same && was.size() > 1) found.append(nb::borrow(state));
    }
    // As many others came where an optimizer of other parameters steps in its place.
    const bool has_fewer = static_cast<std::size_t>(PyDict_Size(states.ptr())) < places_.size();
    if (has_fewer && seen < places_.size()) found.append(nb::none());
    return found;
  }

 private:
  struct Place {
    PyObject* key;
    std::size_t begin, end;  // of objects_
  };

  // The state itself, and its entries where it is a dict.
  void add(PyObject* state) {
    objects_.push_back(state);
    if (!PyDict_Check(state)) return;
    PyObject *name = nullptr, *value = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(state, &at, &name, &value);) objects_.push_back(value);
  }

  // Most states keep their order.
  const Place* place_of(PyObject* key, std::size_t number) {
    if (number < places_.size() && places_[number].key == key) return &places_[number];
    if (of_.empty()) {
      for (std::size_t i = 0; i < places_.size(); ++i) of_[places_[i].key] = i;
    }
    const auto found = of_.find(key);
    return found == of_.end() ? nullptr : &places_[found->second];
  }

  std::vector<Place> places_;
  std::vector<PyObject*> objects_;
  std::unordered_map<PyObject*, std::size_t> of_;  // empty until it is needed
};

}  // namespace

void init_kept_states(nb::module_& module) {
  nb::class_<KeptStates>(module, "KeptStates")
      .def(nb::init<>())
      .def("keep", &KeptStates::keep, nb::arg("states"), "what an optimizer keeps now")
      .def("changed", &KeptStates::changed, nb::arg("states"),
           "the states that are others than those kept, and None if some are gone");
}

}  // namespace trainmon
