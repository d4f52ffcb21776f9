// Measures tensors: the fixed tree of blocks, walked by one thread or several.
#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

#include "model/merge.h"
#include "stats/block_tree.h"
#include "stats/cpu/block.h"
#include "stats/cpu/float_mode.h"
#include "stats/layout.h"
#include "trainmon/stat.h"

namespace trainmon {
namespace {

using cpu::kBlock;

struct Pass {
  cpu::Thresholds eps;
  const cpu::Kernels& kernels;
};

RowState measure_range(const Layout& layout, DType dtype, const Pass& pass, std::int64_t begin,
                       std::int64_t n) {
  return sum_blocks(begin, n, [&](std::int64_t from, std::int64_t size) {
    if (layout.contiguous()) {
      const std::byte* data = layout.base + from * static_cast<std::int64_t>(layout.item);
      return cpu::measure_block(dtype, data, size, pass.eps, pass.kernels);
    }
    std::byte copy[kBlock * sizeof(double)];
    copy_elements(layout, from, size, copy);
    return cpu::measure_block(dtype, copy, size, pass.eps, pass.kernels);
  });
}

// Several threads: chunks of all tensors in one queue, each state in a place of its own.
void measure_parallel(std::span<const TensorView> tensors, std::span<RowState> out,
                      const Pass& pass, int threads) {
  std::vector<std::int64_t> first_chunk(tensors.size() + 1, 0);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    first_chunk[i + 1] = first_chunk[i] + chunk_count(checked_layout(tensors[i]).elements);
  }
  std::vector<RowState> chunks(static_cast<std::size_t>(first_chunk.back()));
  std::atomic<std::int64_t> next = 0;
  const auto work = [&] {
    const cpu::FloatMode mode;
    std::size_t tensor = 0;
    std::size_t described = tensors.size();
    Layout layout;
    for (;;) {
      const std::int64_t chunk = next.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= first_chunk.back()) return;
      while (first_chunk[tensor + 1] <= chunk) ++tensor;
      if (described != tensor) layout = layout_of(tensors[tensor]);
      described = tensor;
      const std::int64_t begin = (chunk - first_chunk[tensor]) * kChunk;
      chunks[static_cast<std::size_t>(chunk)] = measure_range(
          layout, tensors[tensor].dtype, pass, begin, std::min(kChunk, layout.elements - begin));
    }
  };
  {
    std::vector<std::jthread> others;
    try {
      for (int i = 1; i < threads; ++i) others.emplace_back(work);
    } catch (const std::system_error&) {
      // No more threads to be had: those there are do it all.
    }
    work();
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto begin = static_cast<std::size_t>(first_chunk[i]);
    const auto n = static_cast<std::size_t>(first_chunk[i + 1]) - begin;
    out[i] = n == 0 ? RowState{} : sum_chunks(std::span(chunks).subspan(begin, n));
    multiply(out[i], layout_of(tensors[i]).multiplicity);
  }
}

}  // namespace

RowState measure(const TensorView& tensor, double eps, int threads) {
  RowState state;
  measure({&tensor, 1}, {&state, 1}, eps, threads);
  return state;
}

void measure(std::span<const TensorView> tensors, std::span<RowState> out, double eps,
             int threads) {
  const cpu::FloatMode mode;
  const Pass pass{cpu::Thresholds(eps), cpu::kernels()};
  if (threads > 1) {
    std::int64_t work = 0;
    for (const TensorView& tensor : tensors) work += checked_layout(tensor).elements;
    threads = static_cast<int>(std::min<std::int64_t>(threads, work / kChunk));
  }
  if (threads > 1) return measure_parallel(tensors, out, pass, threads);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Layout layout = checked_layout(tensors[i]);
    out[i] = {};
    if (layout.elements == 0) continue;
    out[i] = measure_range(layout, tensors[i].dtype, pass, 0, layout.elements);
    multiply(out[i], layout.multiplicity);
  }
}

}  // namespace trainmon
