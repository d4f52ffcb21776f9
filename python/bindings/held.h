// Objects of bound types that C++ keeps: seen by their type, and visited by the garbage collector.
#pragma once

#include <nanobind/nanobind.h>

#include <new>
#include <utility>
#include <vector>

namespace trainmon {

namespace nb = nanobind;

// A reference to an object of the bound type T, or to None, or null. Members of T are read where
// they lie. As an argument it takes nothing else, and None where the argument does.
template <typename T>
struct Held : nb::object {
  static constexpr auto Name = nb::detail::make_caster<T>::Name;
  static bool check_(nb::handle object) {
    return object.is_none() || (nb::isinstance<T>(object) && nb::inst_ready(object));
  }
  using nb::object::object;
  Held() = default;
  Held(const nb::object& object) : nb::object(object) {}
  Held(nb::object&& object) : nb::object(std::move(object)) {}

  bool is_there() const { return is_valid() && !is_none(); }
  // Only where is_there().
  T* operator->() const { return nb::inst_ptr<T>(*this); }
  T& operator*() const { return *operator->(); }
};

// A weak reference to such an object.
template <typename T>
struct Weak {
  nb::object reference;  // weakref.ref, or null

  static Weak to(nb::handle object) {
    nb::object made = nb::steal(PyWeakref_NewRef(object.ptr(), nullptr));
    if (!made.is_valid()) nb::raise_python_error();
    return {std::move(made)};
  }
  // None once the object is gone.
  Held<T> get() const { return reference.is_valid() ? Held<T>(reference()) : Held<T>(nb::none()); }
};

// A new object of a bound type.
template <typename T>
Held<T> make() {
  nb::object object = nb::inst_alloc(nb::type<T>());
  new (nb::inst_ptr<T>(object)) T();
  nb::inst_mark_ready(object);
  return Held<T>(std::move(object));
}

// For the garbage collector. T::each(visit) visits all references it holds.
template <typename T>
int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  int stopped = 0;
  nb::inst_ptr<T>(self)->each([&](nb::handle held) {
    if (stopped == 0 && held.is_valid()) stopped = visit(held.ptr(), arg);
  });
  return stopped;
}
template <typename T>
int clear(PyObject* self) {
  if (!nb::inst_ready(self)) return 0;
  std::vector<nb::object> dropped;  // only once nothing of ours refers to them
  nb::inst_ptr<T>(self)->each([&](nb::object& held) {
    if (held.is_valid()) dropped.push_back(std::exchange(held, nb::none()));
  });
  return 0;
}

template <typename T>
PyType_Slot collected[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse<T>)},
                           {Py_tp_clear, reinterpret_cast<void*>(clear<T>)},
                           {0, nullptr}};

// A method that C++ calls and a class in Python defines: the base that is bound has its signature.
struct Method {
  const char* name;
  const char* signature;

  template <typename... Arguments>
  nb::object operator()(nb::handle self, Arguments&&... arguments) const {
    return self.attr(name)(std::forward<Arguments>(arguments)...);
  }
};

// Shows these methods in the stub. A subclass that lacks one of them fails when it is defined.
// `methods` stay where they are.
void require_methods(nb::handle type, const Method* const* methods, std::size_t count);
template <std::size_t count>
void require_methods(nb::handle type, const Method* const (&methods)[count]) {
  require_methods(type, methods, count);
}

}  // namespace trainmon
