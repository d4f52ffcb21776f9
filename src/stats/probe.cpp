// The probe. It goes through the blocks of a tensor in C order. It looks at a block for
// everything that was asked for while the block is in the first-level cache.
#include "trainmon/probe.h"

#include <algorithm>
#include <mutex>

#include "base/parallel.h"
#include "stats/block_tree.h"
#include "stats/cpu/block.h"
#include "stats/cpu/float32.h"
#include "stats/cpu/float_mode.h"
#include "stats/cpu/gather.h"
#include "stats/cpu/probe_kernels.h"
#include "stats/digest.h"
#include "stats/intervals.h"
#include "stats/layout.h"

namespace trainmon {
namespace {

using cpu::kBlock;

// What all chunks share.
struct Pass {
  const ProbeRequest& request;
  DType dtype;
  Layout layout;  // in C order
  Intervals intervals;
  cpu::Thresholds eps;
  const cpu::Kernels& kernels;
  const cpu::ProbeKernels& probe_kernels;
  std::byte* positive;  // planes of signs; null where not asked for
  std::byte* negative;
};

// One chunk; a block is looked at by all parts before the next.
class Chunk {
 public:
  Chunk(const Pass& pass, Md5& md5)
      : pass_(pass), digest_(pass.request.digest, md5), totals_(pass.request.bounds.size() + 1) {}

  // The state of a block, and everything but the state.
  RowState measure(std::int64_t begin, std::int64_t n) {
    take(begin, n);
    const RowState state = cpu::measure_block(pass_.dtype, data_, n, pass_.eps, pass_.kernels);
    look();
    return state;
  }
  void skim(std::int64_t begin, std::int64_t n) {
    take(begin, n);
    look();
  }

  const std::vector<std::int64_t>& totals() const { return totals_; }
  std::int64_t exact_zeros() const { return exact_zeros_; }
  std::uint64_t digest() const { return digest_.finish(); }

 private:
  void take(std::int64_t begin, std::int64_t n) {
    const Layout& layout = pass_.layout;
    begin_ = begin;
    n_ = n;
    floats_ = nullptr;
    doubles_ = nullptr;
    if (layout.contiguous()) {
      data_ = layout.base + begin * static_cast<std::int64_t>(layout.item);
    } else {
      copy_elements(layout, begin, n, copy_);
      data_ = copy_;
    }
  }

  void look() {
    if (pass_.positive != nullptr) signs();
    if (pass_.request.intervals) {
      const DType taken = pass_.intervals.taken();
      const void* values = taken == pass_.dtype      ? data_
                           : taken == DType::float32 ? floats()
                                                     : doubles();
      exact_zeros_ += pass_.intervals.count(values, n_, totals_.data());
    }
    if (pass_.request.digest != Digest::none) {
      const bool as_float32 = digests_float32(pass_.request.digest);
      const auto item = as_float32 ? sizeof(float) : pass_.layout.item;
      digest_.add({static_cast<const char*>(as_float32 ? floats() : data_),
                   static_cast<std::size_t>(n_) * item});
    }
  }

  void signs() {
    auto* positive = reinterpret_cast<unsigned char*>(pass_.positive + begin_ / 8);
    auto* negative = pass_.negative == nullptr
                         ? nullptr
                         : reinterpret_cast<unsigned char*>(pass_.negative + begin_ / 8);
    const cpu::ProbeKernels& kernels = pass_.probe_kernels;
    switch (pass_.dtype) {
      case DType::float32:
        return kernels.signs_float32(data_, n_, positive, negative);
      case DType::bfloat16:
        return kernels.signs_16bit(data_, n_, 0x7f80, positive, negative);
      case DType::float16:
        return kernels.signs_16bit(data_, n_, 0x7c00, positive, negative);
      default:
        return kernels.signs_float64(doubles(), n_, positive, negative);
    }
  }

  // The block in another type, made when first asked for.
  const void* floats() {
    if (pass_.dtype == DType::float32) return data_;
    if (floats_ == nullptr) cpu::to_float32(pass_.dtype, data_, n_, float_space_);
    return floats_ = float_space_;
  }
  const void* doubles() {
    if (pass_.dtype == DType::float64) return data_;
    if (doubles_ == nullptr) cpu::widen(pass_.dtype, data_, n_, double_space_);
    return doubles_ = double_space_;
  }

  const Pass& pass_;
  ChunkDigest digest_;
  std::vector<std::int64_t> totals_;
  std::int64_t exact_zeros_ = 0;
  std::int64_t begin_ = 0;
  std::int64_t n_ = 0;
  const void* data_ = nullptr;
  const void* floats_ = nullptr;
  const void* doubles_ = nullptr;
  std::byte copy_[kBlock * sizeof(double)];
  float float_space_[kBlock];
  double double_space_[kBlock];
};

}  // namespace

Probe probe(const TensorView& tensor, const ProbeRequest& request, int threads) {
  const cpu::FloatMode mode;  // for the bounds; each chunk sets its thread's
  checked_layout(tensor);
  const Layout layout = c_order_of(tensor);
  const std::int64_t elements = layout.elements;
  const auto plane = static_cast<std::size_t>((elements + 7) / 8);
  Probe out;
  if (request.signs != Signs::none) {
    out.signs.resize(request.signs == Signs::ternary ? 2 * plane : plane);
  }
  const Pass pass{request,
                  tensor.dtype,
                  layout,
                  Intervals(request.bounds, tensor.dtype),
                  cpu::Thresholds(request.eps),
                  cpu::kernels(),
                  cpu::probe_kernels(),
                  request.signs == Signs::none ? nullptr : out.signs.data(),
                  request.signs == Signs::ternary ? out.signs.data() + plane : nullptr};
  // The state is summed in the order of memory; where that is another one, in a pass of its own.
  const bool one_pass = layout.contiguous();
  const bool more =
      request.signs != Signs::none || request.intervals || request.digest != Digest::none;
  if (!one_pass) out.state = measure(tensor, request.eps, threads);

  const auto chunks = static_cast<std::size_t>(one_pass || more ? chunk_count(elements) : 0);
  std::vector<RowState> states(one_pass ? chunks : 0);
  std::vector<std::uint64_t> digests(request.digest != Digest::none ? chunks : 0);
  std::vector<std::int64_t> totals(request.bounds.size() + 1);
  Md5 md5;
  std::mutex mutex;
  const auto work = [&](std::size_t i) {
    const cpu::FloatMode chunk_mode;
    Chunk chunk(pass, md5);
    const std::int64_t begin = static_cast<std::int64_t>(i) * kChunk;
    const std::int64_t n = std::min(kChunk, elements - begin);
    if (one_pass) {
      states[i] = sum_blocks(begin, n, [&](std::int64_t from, std::int64_t size) {
        return chunk.measure(from, size);
      });
    } else {
      for (std::int64_t from = begin; from < begin + n; from += kBlock) {
        chunk.skim(from, std::min(kBlock, begin + n - from));
      }
    }
    if (!digests.empty()) digests[i] = chunk.digest();
    if (!request.intervals) return;
    const std::lock_guard lock(mutex);
    for (std::size_t k = 0; k < totals.size(); ++k) totals[k] += chunk.totals()[k];
    out.exact_zeros += chunk.exact_zeros();
  };
  const int most = digest_is_serial(request.digest) ? 1 : std::max(threads, 1);
  for_each_parallel(chunks, static_cast<unsigned>(most), work);

  if (!states.empty()) out.state = sum_chunks(states);
  if (request.intervals) out.intervals = pass.intervals.finish(totals, elements);
  const std::uint64_t item = digests_float32(request.digest) ? sizeof(float) : layout.item;
  out.digest = join_digests(request.digest, md5, digests, kChunk * item,
                            static_cast<std::uint64_t>(elements) * item);
  return out;
}

}  // namespace trainmon
