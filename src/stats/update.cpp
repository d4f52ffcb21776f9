// Blocks of all tensors of a formula in C order, into a block of its steps, which is then measured.
#include "stats/update.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "base/parallel.h"
#include "stats/block_tree.h"
#include "stats/cpu/block.h"
#include "stats/cpu/check_kernels.h"
#include "stats/cpu/float32.h"
#include "stats/cpu/float_mode.h"
#include "stats/cpu/gather.h"
#include "stats/layout.h"

namespace trainmon {
namespace {

using cpu::kBlock;

// One tensor of a formula.
struct Input {
  DType dtype = DType::float32;
  Layout layout;
  bool present = false;

  explicit Input(const TensorView& tensor) : dtype(tensor.dtype), present(tensor.data != nullptr) {
    if (!present) return;
    checked_layout(tensor);
    layout = c_order_of(tensor);
  }
  // Elements [from, from + n) as `Number`, in memory or in `space`; null for no tensor.
  template <class Number>
  const Number* read(std::int64_t from, std::int64_t n, Number* space) const {
    if (!present) return nullptr;
    const std::byte* data = layout.base + from * static_cast<std::int64_t>(layout.item);
    std::byte copy[kBlock * sizeof(double)];
    const bool converts = dtype_size(dtype) != sizeof(Number);
    if (!layout.contiguous()) {
      std::byte* to = converts ? copy : reinterpret_cast<std::byte*>(space);
      copy_elements(layout, from, n, to);
      data = to;
    }
    if (!converts) return reinterpret_cast<const Number*>(data);
    if constexpr (sizeof(Number) == sizeof(double)) {
      cpu::widen(dtype, data, n, space);
    } else {
      cpu::to_float32(dtype, data, n, space);
    }
    return space;
  }
};

bool is_float(DType dtype) {
  return dtype <= DType::float8_e5m2;
}

bool same_shape(const TensorView& a, const TensorView& b) {
  return a.ndim == b.ndim && std::equal(a.sizes, a.sizes + a.ndim, b.sizes);
}

struct Pass {
  std::array<Input, 3> inputs;  // x, y, s
  cpu::UpdateFactors factors;
  std::int64_t first;
  cpu::Thresholds eps;
  const cpu::Kernels& kernels;
};

template <class Number>
RowState measure_block(const Pass& pass, std::int64_t from, std::int64_t n, Check& check) {
  Number space[3][kBlock];
  Number step[kBlock];
  const Number* read[3];
  for (std::size_t i = 0; i < 3; ++i) read[i] = pass.inputs[i].read(from, n, space[i]);
  cpu::CheckSums sums;
  DType dtype = DType::float32;
  if constexpr (sizeof(Number) == sizeof(double)) {
    dtype = DType::float64;
    cpu::check_kernels().update_float64(read, pass.factors, n, step);
  } else {
    cpu::check_kernels().update_float32(read, pass.factors, n, step);
  }
  const RowState state =
      cpu::measure_checked_block(dtype, step, n, pass.eps, pass.kernels, pass.first + from, sums);
  add(check, {sums.fingerprint, std::to_array(sums.lanes)});
  return state;
}

double correction(double beta, double step) {
  return 1.0 - std::pow(beta, step);
}

}  // namespace

UpdateFormula adam_update(const TensorView& exp_avg, const TensorView& exp_avg_sq, double step,
                          double beta1, double beta2, double eps) {
  return {.x = exp_avg,
          .s = exp_avg_sq,
          .a = 1.0 / correction(beta1, step),
          .c = 1.0 / std::sqrt(correction(beta2, step)),
          .eps = eps};
}

UpdateFormula plain_update(const TensorView& gradient_or_buffer) {
  return {.x = gradient_or_buffer};
}

UpdateFormula rmsprop_update(const TensorView& gradient, const TensorView& square_avg, double eps) {
  return {.x = gradient, .s = square_avg, .eps = eps};
}

UpdateFormula adagrad_update(const TensorView& gradient, const TensorView& sum, double step,
                             double lr_decay, double eps) {
  return {.x = gradient, .s = sum, .a = 1.0 / (1.0 + (step - 1.0) * lr_decay), .eps = eps};
}

UpdateFormula nadam_update(const TensorView& gradient, const TensorView& exp_avg,
                           const TensorView& exp_avg_sq, double step, double mu_product,
                           double beta1, double beta2, double eps, double momentum_decay) {
  const auto mu = [&](double at) {
    return beta1 * (1.0 - 0.5 * std::pow(0.96, at * momentum_decay));
  };
  const double next = mu(step + 1.0);
  return {.x = gradient,
          .y = exp_avg,
          .s = exp_avg_sq,
          .a = (1.0 - mu(step)) / (1.0 - mu_product),
          .b = next / (1.0 - mu_product * next),
          .c = 1.0 / std::sqrt(correction(beta2, step)),
          .eps = eps};
}

UpdateFormula radam_update(const TensorView& exp_avg, const TensorView& exp_avg_sq, double step,
                           double beta1, double beta2, double eps) {
  const double correction1 = correction(beta1, step);
  const double correction2 = correction(beta2, step);
  const double longest = 2.0 / (1.0 - beta2) - 1.0;
  const double length = longest - 2.0 * step * std::pow(beta2, step) / correction2;
  if (!(length > 5.0)) return {.x = exp_avg, .a = 1.0 / correction1};
  const double rectified = std::sqrt((length - 4.0) * (length - 2.0) * longest /
                                     ((longest - 4.0) * (longest - 2.0) * length));
  return {.x = exp_avg,
          .s = exp_avg_sq,
          .a = rectified * std::sqrt(correction2) / correction1,
          .eps = eps};
}

DType dtype_of(const UpdateFormula& formula) {
  const auto is_wide = [](const TensorView* one) {
    return one->data != nullptr && one->dtype == DType::float64;
  };
  const std::array all = {&formula.x, &formula.y, &formula.s};
  return std::ranges::any_of(all, is_wide) ? DType::float64 : DType::float32;
}

RowState measure(const UpdateFormula& formula, std::int64_t first, Check& check, double eps,
                 int threads) {
  const cpu::FloatMode mode;  // for the sums of chunks; each chunk sets its thread's
  check = {};
  if (element_count(formula.x) == 0) return {};
  for (const TensorView* tensor : {&formula.x, &formula.y, &formula.s}) {
    if (tensor != &formula.x && tensor->data == nullptr) continue;
    if (!is_float(tensor->dtype)) throw std::invalid_argument("a formula takes no integers");
    if (!same_shape(*tensor, formula.x)) {
      throw std::invalid_argument("the tensors of a formula have different shapes");
    }
  }
  const bool wide = dtype_of(formula) == DType::float64;
  checked_layout(formula.x);
  const Pass pass{{Input(formula.x), Input(formula.y), Input(formula.s)},
                  {formula.a, formula.b, formula.c, formula.eps},
                  first,
                  cpu::Thresholds(eps),
                  cpu::kernels()};
  const std::int64_t elements = pass.inputs[0].layout.elements;
  const auto chunks = static_cast<std::size_t>(chunk_count(elements));
  std::vector<RowState> states(chunks);
  std::vector<Check> checks(chunks);
  for_each_parallel(chunks, static_cast<unsigned>(std::max(threads, 1)), [&](std::size_t i) {
    const cpu::FloatMode chunk_mode;
    const std::int64_t begin = static_cast<std::int64_t>(i) * kChunk;
    states[i] = sum_blocks(begin, std::min(kChunk, elements - begin),
                           [&](std::int64_t from, std::int64_t n) {
                             return wide ? measure_block<double>(pass, from, n, checks[i])
                                         : measure_block<float>(pass, from, n, checks[i]);
                           });
  });
  for (const Check& one : checks) add(check, one);
  return sum_chunks(states);
}

}  // namespace trainmon
