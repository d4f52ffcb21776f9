// What a group or a state of an optimizer holds, as a value that can be recorded.
#pragma once

#include <Python.h>

#include <optional>

#include "trainmon/record.h"

namespace trainmon {

// nullopt: no value that is recorded. A tensor of one number is read where that costs no waiting.
// Sets no exception.
std::optional<DeclaredValue> value_of(PyObject* object);

}  // namespace trainmon
