// Blocks in C order, chunk by chunk, with the state where that is the order of memory.
#include "stats/check.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "base/parallel.h"
#include "stats/block_tree.h"
#include "stats/cpu/block.h"
#include "stats/cpu/float_mode.h"
#include "stats/layout.h"

namespace trainmon {
namespace {

using cpu::kBlock;

struct Pass {
  DType dtype;
  Layout layout;  // in C order
  std::int64_t first;
  cpu::Thresholds eps;
  const cpu::Kernels& kernels;
};

void add(Check& into, const cpu::CheckSums& from) {
  into.fingerprint += from.fingerprint;
  for (std::size_t i = 0; i < into.sketch.size(); ++i) into.sketch[i] += from.lanes[i];
}

// The state is that of the elements in C order.
RowState measure_chunk(const Pass& pass, std::int64_t begin, std::int64_t n, Check& check) {
  const cpu::FloatMode mode;
  return sum_blocks(begin, n, [&](std::int64_t from, std::int64_t size) {
    const Layout& layout = pass.layout;
    const std::byte* data = layout.base + from * static_cast<std::int64_t>(layout.item);
    std::byte copy[kBlock * sizeof(double)];
    if (!layout.contiguous()) {
      copy_elements(layout, from, size, copy);
      data = copy;
    }
    cpu::CheckSums sums;
    const RowState state = cpu::measure_checked_block(pass.dtype, data, size, pass.eps,
                                                      pass.kernels, pass.first + from, sums);
    add(check, sums);
    return state;
  });
}

}  // namespace

void add(Check& into, const Check& from) {
  into.fingerprint += from.fingerprint;
  for (std::size_t i = 0; i < into.sketch.size(); ++i) into.sketch[i] += from.sketch[i];
}

RowCheck row_check(const Check& check, double scale) {
  double sums[8];
  for (std::size_t i = 0; i < std::size(sums); ++i) {
    const double other = check.sketch[i + std::size(sums)];
    sums[i] = check.sketch[i] + (i % 2 == 0 ? other : -other);
  }
  return row_check(check.fingerprint, sums, scale);
}

RowCheck row_check(std::uint64_t fingerprint, const double* sums, double scale) {
  RowCheck taken;
  taken.fingerprint = fingerprint;
  taken.has_sketch = true;
  for (std::size_t i = 0; i < taken.sketch.size(); ++i) {
    taken.sketch[i] = static_cast<float>(sums[i] / scale);
  }
  return taken;
}

RowState measure(const TensorView& tensor, std::int64_t first, Check& check, double eps,
                 int threads) {
  const cpu::FloatMode mode;  // for the sums of chunks; each chunk sets its thread's
  checked_layout(tensor);
  const Pass pass{tensor.dtype, c_order_of(tensor), first, cpu::Thresholds(eps), cpu::kernels()};
  check = {};
  const std::int64_t elements = pass.layout.elements;
  if (elements == 0) return {};
  RowState state;
  if (elements <= kChunk) {
    state = measure_chunk(pass, 0, elements, check);
  } else {
    const auto chunks = static_cast<std::size_t>(chunk_count(elements));
    std::vector<RowState> states(chunks);
    std::vector<Check> checks(chunks);
    for_each_parallel(chunks, static_cast<unsigned>(std::max(threads, 1)), [&](std::size_t i) {
      const std::int64_t begin = static_cast<std::int64_t>(i) * kChunk;
      states[i] = measure_chunk(pass, begin, std::min(kChunk, elements - begin), checks[i]);
    });
    state = sum_chunks(states);
    for (const Check& one : checks) add(check, one);
  }
  // The state is summed in the order of memory; where that is another one, in a pass of its own.
  return pass.layout.contiguous() ? state : measure(tensor, eps, threads);
}

}  // namespace trainmon
