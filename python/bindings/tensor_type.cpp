// Tells the types of tensors apart.
#include "tensor_type.h"

#include <unordered_map>
#include <utility>

#include "ref.h"

namespace trainmon {
namespace {

bool is_subtype(PyTypeObject* type, const char* module, const char* name) {
  const Ref base(imported(module, name));
  return base && PyType_Check(base.get()) &&
         PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(base.get())) != 0;
}

// Before 2.10, data_ptr() of MindSpore is 0 until an operation has used the tensor, and that of a
// view lacks its offset (seen in 2.7.0).
bool has_sound_addresses() {
  const std::string version = text_of(Ref(imported("mindspore", "__version__")).get());
  int major = 0;
  int minor = 0;
  return std::sscanf(version.c_str(), "%d.%d", &major, &minor) < 2 ||
         std::pair(major, minor) >= std::pair(2, 10);
}

TypeInfo classify(PyTypeObject* type) {
  PyObject* object = reinterpret_cast<PyObject*>(type);
  const std::string name = lower(text_of(Ref(attribute(object, "__name__")).get()));
  if (is_subtype(type, "torch", "Tensor")) {
    // A subclass that dispatches its own operations has no memory of its own to look at.
    const Ref dispatch(attribute(object, "__torch_dispatch__"));
    const Ref plain(imported("torch", "Tensor"));
    const Ref plain_dispatch(attribute(plain.get(), "__torch_dispatch__"));
    if (dispatch.get() != plain_dispatch.get()) return {Way::refused, nullptr, name};
    const Ref capsule(attribute(object, "__dlpack_c_exchange_api__"));
    const auto* api = !capsule ? nullptr
                               : static_cast<const dlpack::ExchangeApi*>(
                                     PyCapsule_GetPointer(capsule.get(), "dlpack_exchange_api"));
    PyErr_Clear();
    while (api != nullptr && api->version.major != dlpack::kMajor) api = api->older;
    const Ref function(attribute(object, "__torch_function__"));
    const Ref none(imported("torch._C", "_disabled_torch_function_impl"));
    const bool has_function = object != plain.get() && function.get() != none.get();
    const bool is_old = api == nullptr || api->tensor_from_object == nullptr;
    return {is_old ? Way::by_hand : Way::exchange, is_old ? nullptr : api, name, has_function};
  }
  if (is_subtype(type, "numpy", "ndarray")) {
    // What a masked array holds where it is masked is not data.
    return {is_subtype(type, "numpy.ma", "MaskedArray") ? Way::refused : Way::numpy, nullptr, name};
  }
  if (is_subtype(type, "mindspore.common.tensor", "Tensor")) {
    return {has_sound_addresses() ? Way::mindspore : Way::old_mindspore, nullptr, name};
  }
  const Ref method(attribute(object, "__dlpack__"));
  return {method && !is_subtype(type, "numpy", "generic") ? Way::dlpack : Way::refused, nullptr,
          name};
}

}  // namespace

const TypeInfo& type_info(PyTypeObject* type) {
  constexpr std::size_t kMost = 1000;  // a program that makes types without end must not grow us
  static std::unordered_map<PyTypeObject*, TypeInfo> known;
  static TypeInfo last_unknown;
  static const std::pair<PyTypeObject* const, TypeInfo>* last = nullptr;  // its address is stable
  if (last != nullptr && last->first == type) return last->second;
  const auto found = known.find(type);
  if (found != known.end()) {
    last = &*found;
    return found->second;
  }
  if (known.size() >= kMost) return last_unknown = classify(type);
  Py_INCREF(reinterpret_cast<PyObject*>(type));  // so that its address is not used again
  return known.emplace(type, classify(type)).first->second;
}

}  // namespace trainmon
