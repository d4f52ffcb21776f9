// How tensors of a Python type are read.
#pragma once

#include <Python.h>

#include <string>

#include "dlpack.h"

namespace trainmon {

enum class Way { exchange, by_hand, numpy, mindspore, old_mindspore, dlpack, refused };

struct TypeInfo {
  Way way = Way::refused;
  const dlpack::ExchangeApi* api = nullptr;
  std::string reason;
  bool has_function = false;  // a torch.Tensor that sees the calls of its own methods
};

// Looked at once for each type. Call with the GIL held.
const TypeInfo& type_info(PyTypeObject* type);

}  // namespace trainmon
