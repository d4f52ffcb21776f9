// Reads the description of a tensor, in the way that its type offers.
#include "tensor.h"

#include <exception>

#include "tensor_readers.h"
#include "tensor_type.h"

namespace trainmon {
namespace {

Access read(PyObject* object, TensorAccess& out, bool asks_all) {
  const TypeInfo& type = type_info(Py_TYPE(object));
  switch (type.way) {
    case Way::exchange:
      return read_exchange(*type.api, object, out, asks_all);
    case Way::by_hand:
      return read_by_hand(object, out);
    case Way::numpy:
      return read_numpy(object, out);
    case Way::mindspore:
      return read_mindspore(object, out);
    case Way::old_mindspore:
      return read_old_mindspore(object, out);
    case Way::dlpack:
      return read_dlpack(object, out);
    case Way::refused:
      break;
  }
  return refuse(out, type.reason);
}

}  // namespace

Access read_tensor(PyObject* object, TensorAccess& out, bool asks_all) noexcept {
  Py_CLEAR(out.owner);
  out.view = {};
  out.is_complete = false;
  out.reason.clear();
  Access access = Access::refused;
  try {
    access = read(object, out, asks_all);
  } catch (const std::exception&) {  // no memory for a name
    out.reason.clear();
  }
  if (PyErr_Occurred() != nullptr) PyErr_Clear();
  return access;
}

}  // namespace trainmon
