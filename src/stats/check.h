// What the step checks take of a tensor: a fingerprint of its bits and a sketch of its values.
#pragma once

#include <array>
#include <cstdint>

#include "trainmon/record.h"
#include "trainmon/stat.h"

namespace trainmon {

// Both are linear. Elements are numbered in C order in the *full* tensor, of which a shard has a
// contiguous range. So those of the shards add up to that of the whole: fingerprints bit for bit,
// modulo 2^64, sketches up to rounding. Expanded elements count as often as they appear. Both of
// an empty tensor are 0. The constants are in stats/check_keys.h.
//
// fingerprint  The bytes of the elements are little-endian words w of 32 bits. Sixteen words are
//              a row, eight rows a group, sixteen groups a block. The halves lo and hi of w are
//              signed 16-bit numbers. The word is in row r of its group, column c, group g of its
//              block, and block b. The fingerprint is the
//                  sum over all words of M[b] * K[16 g + c] * (L[r] * lo + H[r] * hi)   mod 2^64.
//              The bits are the same for any number of threads, any instruction set and any
//              layout. Equal bits give equal fingerprints; -0.0 differs from 0.0, and so do NaN
//              of other bits. Another fingerprint is certain where one bit or any two bits of a
//              block are flipped. It is also certain where the same bit of a column is flipped in
//              any rows of a group. Random bits in one word, or in one column of a group, go
//              unseen once in 2^26 times. In several columns they do so less than once in 2^48.
// sketch       Sixteen sums, for the index i of an element in the full tensor:
//                  sketch[i % 16] += block_sign(i / 256) * step_sign(i / 32 % 8) * x[i].
//              The length of the sketch is about that of the tensor. Of a constant one it is
//              exactly that in one whole block, 0.77 to 2.45 times that in many. It is at most
//              2.31 times that in less than one block. There are sixteen sums, for the kernels of
//              the state have as many lanes.
//              A NaN or an infinity makes its sum one, and no other. The bits, but those of a
//              NaN, are the same for any number of threads, any instruction set and any layout.
//              Blocks of 4,096 elements from the first one on are summed each from 0, then chunks
//              of 2^18 elements, then these in order. Sums are in float64; of 16-bit formats in
//              whole blocks they are in float32 for 32 elements.
struct Check {
  std::uint64_t fingerprint = 0;
  std::array<double, 16> sketch = {};
};

// Adds what another range of the same tensor, or another tensor of its shape, has.
void add(Check& into, const Check& from);

// What is recorded of it, of a tensor whose row is divided by `scale`. It is the fingerprint and
// eight sums: s[i] + s[i + 8] for even i and s[i] - s[i + 8] for odd i. Half of the sums are
// enough. With one sign for all the sketch of a constant would grow, or vanish.
RowCheck row_check(const Check& check, double scale = 1.0);
// The same of what has the eight sums already.
RowCheck row_check(std::uint64_t fingerprint, const double* sums, double scale = 1.0);

// The state that measure() gives, bit for bit, and the check, in one reading of memory where the
// tensor is C-contiguous; in two otherwise. `first` is the index of the first element in the full
// tensor (0 for a tensor that is no shard). Any type; integers have a sketch as well.
// Throws std::invalid_argument when the tensor is not on the CPU.
RowState measure(const TensorView& tensor, std::int64_t first, Check& check,
                 double eps = kDefaultEps, int threads = 1);

}  // namespace trainmon
