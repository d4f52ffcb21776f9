#include "model/histogram.h"

#include <bit>
#include <cstring>

namespace trainmon {

std::vector<std::byte> histogram_bytes(const Histogram& histogram) {
  static_assert(std::endian::native == std::endian::little);
  std::vector<std::byte> bytes;
  const auto put = [&bytes](const auto& value) {
    const auto* from = reinterpret_cast<const std::byte*>(&value);
    bytes.insert(bytes.end(), from, from + sizeof value);
  };
  put(histogram.low);
  put(histogram.high);
  for (const std::int64_t count : {histogram.below, histogram.above, histogram.nans}) put(count);
  for (const std::int64_t count : histogram.bins) put(count);
  return bytes;
}

std::optional<Histogram> read_histogram(std::span<const std::byte> bytes) {
  constexpr std::size_t kFixed = 2 * sizeof(double) + 3 * sizeof(std::int64_t);
  if (bytes.size() < kFixed || bytes.size() % sizeof(std::int64_t) != 0) return std::nullopt;
  Histogram histogram;
  const auto take = [&bytes](auto& value) {
    std::memcpy(&value, bytes.data(), sizeof value);
    bytes = bytes.subspan(sizeof value);
  };
  take(histogram.low);
  take(histogram.high);
  for (std::int64_t* count : {&histogram.below, &histogram.above, &histogram.nans}) take(*count);
  histogram.bins.resize(bytes.size() / sizeof(std::int64_t));
  for (std::int64_t& count : histogram.bins) take(count);
  return histogram;
}

}  // namespace trainmon
