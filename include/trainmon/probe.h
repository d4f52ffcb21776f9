// What a gradient probe takes of one tensor, all in one pass. It is its state, how many elements
// lie in which interval, the signs of its elements, a digest of its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainmon/record.h"
#include "trainmon/stat.h"
#include "trainmon/tensor.h"

namespace trainmon {

// What a sign is. `positive`: one bit per element, x > 0 (zero, negative and NaN alike are false,
// as the peer has it). `ternary`: two planes, x > 0 and x < 0, so that zero is not negative.
enum class Signs : std::uint8_t { none, positive, ternary };

// Digests. `md5` (32 hex digits) and `crc32` (zlib's, 8 hex digits) are of the elements as float32
// in C order, little-endian, as the peer has it. Numbers that float32 lacks are rounded
// to nearest, as torch's .float() does. md5 is serial by definition: one thread works, at a
// fraction of the speed of the rest. `fast64` (16 hex digits) is a 64-bit hash of the elements as
// they are stored, in C order. There -0.0 differs from 0.0 and bfloat16 from float32. It is not for
// adversaries.
//
// fast64 has take(h, w) = x ^ (x >> 29) for x = (h ^ w) * 0x9E3779B97F4A7C15, modulo 2^64. The
// bytes of each 262144 elements are 64-bit words; the last ones of a tensor are filled up with
// zeros to a multiple of 256. 32 lanes take them in turn, lane j from (j + 1) * 0x9E3779B97F4A7C15
// on. Their value is taken from their number of bytes (not filled up) on: the lanes, in order. The
// digest is taken from 0x9E3779B97F4A7C15 on: these values, in order, then the number of bytes.
enum class Digest : std::uint8_t { none, md5, crc32, fast64 };
std::string_view digest_name(Digest digest);
std::optional<Digest> digest_from_name(std::string_view name);

struct ProbeRequest {
  bool intervals = false;
  // Strictly ascending; compared in float32 where the tensor has a floating type of at most 32
  // bits, else in float64. Beyond the largest number of that type, infinities included, a bound
  // holds every number but +inf. Empty: one interval that holds everything.
  std::vector<double> bounds;
  Signs signs = Signs::none;
  Digest digest = Digest::none;
  double eps = kDefaultEps;  // of RowState::zeros
};

struct Probe {
  RowState state;
  // bounds.size() + 1 counts where asked for: (-inf, b0], (b0, b1], ..., (bn, inf). NaN and +inf
  // are in the last one.
  std::vector<std::int64_t> intervals;
  std::int64_t exact_zeros = 0;  // elements equal to 0 (both zeros); counted with `intervals`
  // Per plane ceil(count / 8) bytes, element i of the C order in bit i % 8 of byte i / 8, unused
  // bits 0. `positive`: one plane; `ternary`: the plane of x > 0, then the plane of x < 0.
  std::vector<std::byte> signs;
  std::string digest;  // lower-case hex; "" where not asked for
};

// CPU tensors of any layout and dtype, empty and 0-dim ones too; `state` is what measure() gives.
// Same result for any number of threads and on every CpuLevel, whatever the caller's floating-point
// mode. One pass over a C-contiguous tensor; the state of any other takes one of its own. Throws
// std::invalid_argument when tensor.device is not cpu, there are elements but no data, or the
// bounds are not strictly ascending (NaN included).
Probe probe(const TensorView& tensor, const ProbeRequest& request, int threads = 1);

// A tensor of a step on the CPU, and the series it is one of. Borrowed for one call.
struct ProbeItem {
  SeriesId series = 0;
  TensorView tensor;
};

}  // namespace trainmon
