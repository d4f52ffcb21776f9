// Binds include/trainmon/config.h: checking a configuration, its schema, kinds and name patterns.
#include "trainmon/config.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "config/config_keys.h"
#include "init.h"
#include "model/kinds.h"
#include "trainmon/record.h"

namespace nb = nanobind;

namespace trainmon {
namespace {

nb::list keys() {
  nb::list keys;
  for (const ConfigKey& key : config_keys()) {
    nb::dict entry;
    entry["name"] = key.name;
    entry["meaning"] = key.meaning;
    entry["expectation"] = key.expectation;
    entry["default"] = key.fallback;
    entry["example"] = key.example;
    entry["subject"] = subject_title(key.subject);
    entry["follower"] = follower_name(key.follower);
    keys.append(entry);
  }
  return keys;
}

}  // namespace

void init_config(nb::module_& module) {
  // ConfigError(ValueError) with all faults as a list of str in `.faults`.
  static PyObject* error_type = PyErr_NewExceptionWithDoc(
      "trainmon.ConfigError",
      R"doc(A configuration with one or more faults, all in `faults`, a list of str.

>>> model = torch.nn.Linear(4, 2)
>>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
>>> try:
...     trainmon.watch(model, optimizer, evry=3, budget="200%")
... except trainmon.ConfigError as error:
...     for fault in error.faults:
...         print(fault)
budget = "200%": must be a number from 1e-04 to 0.5, text such as "1%", or null
"evry" = 3: unknown key; did you mean "every"?
)doc",
      PyExc_ValueError, nullptr);
  module.attr("ConfigError") = nb::borrow(error_type);
  nb::register_exception_translator([](const std::exception_ptr& exception, void*) {
    try {
      std::rethrow_exception(exception);
    } catch (const ConfigError& error) {
      nb::object value = nb::borrow(error_type)(error.what());
      value.attr("faults") = nb::cast(error.faults());
      PyErr_SetObject(error_type, value.ptr());
    }
  });

  module.def(
      "check_config", [](std::string_view json) { return config_to_json(config_from_json(json)); },
      nb::arg("json"),
      "The effective configuration (JSON text) of a JSON text; ConfigError names every fault.");
  module.def("config_schema", &config_schema, "JSON Schema of a configuration, as text.");
  module.def("config_keys", &keys,
             "Every configuration key as a dict of str, in the order of the table: name, meaning, "
             "expectation, default and example (JSON text), subject, follower.");
  module.def("expand_kinds", &expand_kinds, nb::arg("kinds"),
             "The kinds a list of kinds and groups stands for.");
  module.def(
      "fixed_kinds", [] { return std::vector(fixed_kinds().begin(), fixed_kinds().end()); },
      "Every kind but those of optimizer state, in the order of the start line.");
  module.def(
      "kinds_of_checks",
      [] { return std::vector(kinds_of_checks().begin(), kinds_of_checks().end()); },
      "What `checks` adds to the kinds that are asked for: groups and kinds.");
  module.def("name_selected", &name_selected, nb::arg("name"), nb::arg("include"),
             nb::arg("exclude"), "Whether name patterns select a parameter or module name.");
}

}  // namespace trainmon
