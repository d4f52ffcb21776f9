// Methods that C++ calls and classes in Python define.
#include "held.h"

namespace trainmon {

void require_methods(nb::handle type, const Method* const* methods, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const char* name = methods[i]->name;
    type.attr(name) = nb::cpp_function(
        [name](const nb::args&) {
          PyErr_SetString(PyExc_NotImplementedError, name);
          nb::raise_python_error();
        },
        nb::name(name), nb::scope(type), nb::is_method(), nb::sig(methods[i]->signature));
  }
  // The limited API has no PyClassMethod_Type.
  const nb::object class_method = nb::module_::import_("builtins").attr("classmethod");
  type.attr("__init_subclass__") = class_method(nb::cpp_function(
      [type, methods, count](nb::handle subclass) {
        for (std::size_t i = 0; i < count; ++i) {
          const char* name = methods[i]->name;
          if (!subclass.attr(name).is(type.attr(name))) continue;
          PyErr_Format(PyExc_TypeError, "%U does not define %s(), which C++ calls",
                       nb::object(subclass.attr("__name__")).ptr(), name);
          nb::raise_python_error();
        }
      },
      nb::name("__init_subclass__"), nb::scope(type)));
}

}  // namespace trainmon
