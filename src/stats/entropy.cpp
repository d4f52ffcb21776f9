// Two passes: the range of the ids, then a count of each.
#include "stats/entropy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "stats/layout.h"

namespace trainmon {
namespace {

constexpr std::int64_t kBlock = 1024;
constexpr std::uint64_t kMostIds = 1u << 20;

template <typename Id, typename Look>
void each_id(const Layout& layout, Look&& look) {
  std::array<Id, kBlock> block;
  for (std::int64_t begin = 0; begin < layout.elements; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, layout.elements - begin);
    copy_elements(layout, begin, n, reinterpret_cast<std::byte*>(block.data()));
    for (std::int64_t i = 0; i < n; ++i) look(block[static_cast<std::size_t>(i)]);
  }
}

template <typename Id>
std::optional<double> entropy_of(const Layout& layout) {
  Id least = std::numeric_limits<Id>::max(), most = std::numeric_limits<Id>::lowest();
  each_id<Id>(layout, [&](Id id) {
    least = std::min(least, id);
    most = std::max(most, id);
  });
  const std::uint64_t range = static_cast<std::uint64_t>(most) - static_cast<std::uint64_t>(least);
  if (range >= kMostIds) return std::nullopt;
  std::vector<std::uint32_t> counts(static_cast<std::size_t>(range) + 1);
  each_id<Id>(layout, [&](Id id) {
    ++counts[static_cast<std::size_t>(static_cast<std::uint64_t>(id) -
                                      static_cast<std::uint64_t>(least))];
  });
  const auto all = static_cast<double>(layout.elements);
  double sum = 0.0;
  for (const std::uint32_t count : counts) {
    if (count > 1) sum += count * std::log2(count);
  }
  return std::max(0.0, std::log2(all) - sum / all);
}

}  // namespace

std::optional<double> token_entropy(const TensorView& tensor) {
  const Layout layout = checked_layout(tensor);
  if (layout.elements == 0) return std::nullopt;
  switch (tensor.dtype) {
    case DType::int64:
      return entropy_of<std::int64_t>(layout);
    case DType::int32:
      return entropy_of<std::int32_t>(layout);
    case DType::int16:
      return entropy_of<std::int16_t>(layout);
    case DType::uint64:
      return entropy_of<std::uint64_t>(layout);
    case DType::uint32:
      return entropy_of<std::uint32_t>(layout);
    case DType::uint16:
      return entropy_of<std::uint16_t>(layout);
    default:
      return std::nullopt;
  }
}

}  // namespace trainmon
