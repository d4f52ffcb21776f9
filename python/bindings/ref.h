// References to Python objects and their attributes, where no exception is wanted.
#pragma once

#include <Python.h>

#include <cctype>
#include <string>
#include <utility>

namespace trainmon {

// A strong reference.
class Ref {
 public:
  explicit Ref(PyObject* object) : object_(object) {}
  ~Ref() { Py_XDECREF(object_); }
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_;
};

// Attribute or result of a method without arguments; null and no exception when that fails.
inline PyObject* attribute(PyObject* object, const char* name) {
  PyObject* value = PyObject_GetAttrString(object, name);
  if (value == nullptr) PyErr_Clear();
  return value;
}
inline PyObject* call(PyObject* object, const char* name) {
  const Ref method(attribute(object, name));
  PyObject* value = method ? PyObject_CallNoArgs(method.get()) : nullptr;
  if (value == nullptr) PyErr_Clear();
  return value;
}
inline bool call_is_true(PyObject* object, const char* name) {
  const Ref value(call(object, name));
  return value.get() == Py_True;
}
inline bool attribute_is_true(PyObject* object, const char* name) {
  const Ref value(attribute(object, name));
  return value.get() == Py_True;
}

inline std::string text_of(PyObject* object) {
  const Ref text(object == nullptr ? nullptr : PyObject_Str(object));
  const char* utf8 = text ? PyUnicode_AsUTF8AndSize(text.get(), nullptr) : nullptr;
  if (utf8 == nullptr) PyErr_Clear();
  return utf8 == nullptr ? "" : utf8;
}
inline std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// An attribute of a module that is already imported; a tensor's type cannot exist before its
// module.
inline PyObject* imported(const char* module, const char* name) {
  PyObject* modules = PyImport_GetModuleDict();
  PyObject* found = modules == nullptr ? nullptr : PyDict_GetItemString(modules, module);
  return found == nullptr ? nullptr : attribute(found, name);
}

}  // namespace trainmon
