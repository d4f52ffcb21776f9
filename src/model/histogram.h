// A histogram, and its bytes as a payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace trainmon {

// Equal bins from low to high, the last one closed, and what lies outside.
struct Histogram {
  double low = 0.0;
  double high = 0.0;
  std::vector<std::int64_t> bins;
  std::int64_t below = 0;
  std::int64_t above = 0;
  std::int64_t nans = 0;
};

// As the bytes of a payload (docs/formats.md): low, high (float64), below, above, nans and the bins
// (uint64), little-endian.
std::vector<std::byte> histogram_bytes(const Histogram& histogram);
// The other way; nullopt where the bytes are none.
std::optional<Histogram> read_histogram(std::span<const std::byte> bytes);

}  // namespace trainmon
