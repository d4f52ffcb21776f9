// Element types: names and sizes, and the number of elements of a view.
#include <algorithm>
#include <array>

#include "trainmon/tensor.h"

namespace trainmon {
namespace {

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  std::size_t size;
};

constexpr std::array<DTypeInfo, 15> kDTypes = {{
    {DType::float64, "float64", 8},
    {DType::float32, "float32", 4},
    {DType::float16, "float16", 2},
    {DType::bfloat16, "bfloat16", 2},
    {DType::float8_e4m3fn, "float8_e4m3fn", 1},
    {DType::float8_e5m2, "float8_e5m2", 1},
    {DType::int64, "int64", 8},
    {DType::int32, "int32", 4},
    {DType::int16, "int16", 2},
    {DType::int8, "int8", 1},
    {DType::uint64, "uint64", 8},
    {DType::uint32, "uint32", 4},
    {DType::uint16, "uint16", 2},
    {DType::uint8, "uint8", 1},
    {DType::bool8, "bool", 1},
}};

constexpr bool dtypes_in_enum_order() {
  for (std::size_t i = 0; i < kDTypes.size(); ++i) {
    if (static_cast<std::size_t>(kDTypes[i].dtype) != i) return false;
  }
  return true;
}
static_assert(dtypes_in_enum_order());

}  // namespace

std::string_view dtype_name(DType dtype) {
  return kDTypes[static_cast<std::size_t>(dtype)].name;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  const auto found = std::ranges::find(kDTypes, name, &DTypeInfo::name);
  if (found == kDTypes.end()) return std::nullopt;
  return found->dtype;
}

std::size_t dtype_size(DType dtype) {
  return kDTypes[static_cast<std::size_t>(dtype)].size;
}

std::int64_t element_count(const TensorView& tensor) {
  std::int64_t count = 1;
  for (int i = 0; i < tensor.ndim; ++i) {
    if (tensor.sizes[i] == 0) return 0;
    count *= tensor.sizes[i];
  }
  return count;
}

}  // namespace trainmon
