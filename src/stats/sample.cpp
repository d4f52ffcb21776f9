// Strata of consecutive blocks, two of each: the difference of the two says how far they scatter.
#include "stats/sample.h"

#include <algorithm>
#include <cmath>

#include "model/merge.h"
#include "stats/check_keys.h"
#include "stats/cpu/block.h"
#include "stats/cpu/float_mode.h"
#include "stats/layout.h"

namespace trainmon {
namespace {

constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15u;  // the step of splitmix64

// A sum of squares that neither overflows nor underflows. Each number comes divided by 2^scale. The
// sum is kept divided by the square of the largest such power.
class SumOfSquares {
 public:
  void add(double x, std::int32_t scale) {
    if (x == 0.0) return;  // fits every scale
    if (sum_ == 0.0) scale_ = scale;
    if (scale > scale_) {
      sum_ = std::ldexp(sum_, 2 * (scale_ - scale));
      scale_ = scale;
    } else if (scale < scale_) {
      x = std::ldexp(x, scale - scale_);
    }
    sum_ += x * x;
  }
  // The square root of the sum times `factor`, divided by 2^scale.
  double root(double factor, std::int32_t scale) const {
    const double root = std::sqrt(sum_ * factor);
    return scale_ == scale ? root : std::ldexp(root, scale_ - scale);
  }

 private:
  double sum_ = 0.0;
  std::int32_t scale_ = 0;
};

// Of strata of one size: the blocks that were read, and the squares of their differences.
struct Strata {
  RowState blocks;
  SumOfSquares of_sum;
  SumOfSquares of_sum_sq;

  void add(const RowState& a, const RowState& b) {
    RowState pair = a;
    merge_states(pair, b);
    const std::int32_t e = pair.exponent;
    const auto sum = [e](const RowState& one) {  // which itself may overflow
      return e == 0 ? one.sum : std::ldexp(one.mean, -e) * static_cast<double>(one.finite());
    };
    const auto sum_sq = [e](const RowState& one) {
      return one.exponent == e ? one.sum_sq : std::ldexp(one.sum_sq, 2 * (one.exponent - e));
    };
    of_sum.add(sum(a) - sum(b), e);
    of_sum_sq.add(sum_sq(a) - sum_sq(b), 2 * e);
    merge_states(blocks, pair);
  }
};

// Of a variance estimated from two of so many blocks, what stands before the squared difference.
double variance_factor(std::int64_t blocks) {
  const auto n = static_cast<double>(blocks);
  return n * (n - 2.0) / 4.0;
}

class Sampled {
 public:
  Sampled(const TensorView& tensor, const Layout& layout, double eps)
      : dtype_(tensor.dtype), layout_(layout), eps_(eps), kernels_(cpu::kernels()) {}

  RowState read(std::int64_t begin, std::int64_t n) const {
    const std::byte* data = layout_.base + begin * static_cast<std::int64_t>(layout_.item);
    return cpu::measure_block(dtype_, data, n, eps_, kernels_);
  }
  void draw(Strata& strata, std::uint64_t seed, std::int64_t stratum, std::int64_t first_block,
            std::int64_t blocks) const {
    const DrawnBlocks drawn = drawn_blocks(seed, stratum, blocks);
    const auto one = [&](std::int64_t block) {
      return read((first_block + block) * kSampleBlock, kSampleBlock);
    };
    strata.add(one(drawn.first), one(drawn.second));
  }

 private:
  const DType dtype_;
  const Layout& layout_;
  const cpu::Thresholds eps_;
  const cpu::Kernels& kernels_;
};

// Elements that were read, and those that were left out of sums.
void count(RowState& into, const RowState& from) {
  each_state_field([&](auto field) {
    if constexpr (field.is_count) into.*field.member += from.*field.member;
  });
}

}  // namespace

std::uint64_t sample_seed(const SampleKey& key) {
  std::uint64_t seed = mix64(static_cast<std::uint64_t>(std::int64_t{key.rank}));
  for (const std::int64_t part : {static_cast<std::int64_t>(key.series), key.window,
                                  std::int64_t{key.accum}, std::int64_t{key.call}}) {
    seed = mix64(seed ^ static_cast<std::uint64_t>(part));
  }
  return seed;
}

DrawnBlocks drawn_blocks(std::uint64_t seed, std::int64_t stratum, std::int64_t blocks) {
  const std::uint64_t bits = mix64(seed + static_cast<std::uint64_t>(stratum) * kGolden);
  const auto of = [](std::uint64_t half, std::int64_t n) {
    return static_cast<std::int64_t>(half * static_cast<std::uint64_t>(n) >> 32);
  };
  const std::int64_t a = of(bits >> 32, blocks);
  std::int64_t b = of(bits & 0xFFFFFFFFu, blocks - 1);
  if (b >= a) ++b;
  return {std::min(a, b), std::max(a, b)};
}

std::optional<RowState> measure_sample(const TensorView& tensor, int n, std::uint64_t seed,
                                       RowSample& sample, double eps) {
  if (element_count(tensor) < 4 * n * kSampleBlock) return std::nullopt;
  const Layout layout = checked_layout(tensor);
  if (!layout.contiguous() || layout.multiplicity != 1) return std::nullopt;
  const cpu::FloatMode mode;
  const Sampled sampled(tensor, layout, eps);
  const std::int64_t size = 2 * std::int64_t{n};
  const std::int64_t blocks = layout.elements / kSampleBlock;
  const std::int64_t strata = blocks / size, left = blocks % size;
  Strata full, rest;
  RowState whole;
  for (std::int64_t h = 0; h < strata; ++h) sampled.draw(full, seed, h, h * size, size);
  if (left > 2) sampled.draw(rest, seed, strata, strata * size, left);
  const std::int64_t from = (left > 2 ? blocks : strata * size) * kSampleBlock;
  for (std::int64_t at = from; at < layout.elements; at += kSampleBlock) {
    merge_states(whole, sampled.read(at, std::min(kSampleBlock, layout.elements - at)));
  }

  RowState read;
  for (const RowState* const part : {&full.blocks, &rest.blocks, &whole}) count(read, *part);
  sample.elements = read.count;
  // Each block stands for half of its stratum. Twice that is a whole number.
  multiply(full.blocks, size);
  multiply(rest.blocks, left);
  multiply(whole, 2);
  RowState state = full.blocks;
  merge_states(state, rest.blocks);
  merge_states(state, whole);
  state.sum *= 0.5;
  state.m2 *= 0.5;
  state.sum_sq *= 0.5;

  const std::int32_t e = state.exponent;
  const double of_full = variance_factor(size), of_rest = variance_factor(left);
  // hypot() of two roots; neither overflows where the sums do not.
  sample.sum_error = std::hypot(full.of_sum.root(of_full, 0), rest.of_sum.root(of_rest, 0));
  sample.sum_sq_error =
      std::hypot(full.of_sum_sq.root(of_full, 2 * e), rest.of_sum_sq.root(of_rest, 2 * e));
  sample.min = state.min;
  sample.max = state.max;
  each_state_field([&](auto field) {
    if constexpr (field.is_count) state.*field.member = read.*field.member;
  });
  state.count = layout.elements;
  state.mark_estimate();
  return state;
}

}  // namespace trainmon
