// Trainings computed here in the arithmetic of their dtype and measured by the kernels, whose steps
// the engine is shown, with faults where a test plants them.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "detect/engine.h"
#include "model/state_fields.h"
#include "stats/check.h"
#include "stats/update.h"

namespace trainmon::detect {

struct Bf16 {
  std::uint16_t bits = 0;
};
inline float to_float(float value) {
  return value;
}
inline float to_float(Bf16 value) {
  return std::bit_cast<float>(std::uint32_t{value.bits} << 16);
}
template <typename T>
T rounded(float value);
template <>
inline float rounded<float>(float value) {
  return value;
}
template <>
inline Bf16 rounded<Bf16>(float value) {  // to nearest, ties to even; finite values
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return {static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)};
}

enum class Formula { adam, sgd, momentum };

// Data-parallel ranks whose gradients are drawn at random, with AdamW or SGD.
template <typename T>
class Training {
 public:
  Training(std::uint64_t seed, int ranks, std::vector<std::size_t> sizes, Formula formula)
      : random_(seed), formula_(formula), sizes_(std::move(sizes)), ranks_(ranks) {
    for (int r = 0; r < ranks; ++r) numbers_.push_back(r);
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      tensors_.push_back({"t" + std::to_string(i), 0, 0});
    }
    engine_.emplace(tensors_, numbers_);
    Rank start;
    for (const std::size_t size : sizes_) {
      std::vector<T> w(size);
      for (T& x : w) x = rounded<T>(draw());
      start.w.push_back(w);
      start.m.emplace_back(size, T{});
      start.v.emplace_back(size, T{});
    }
    all_.assign(static_cast<std::size_t>(ranks), start);
  }

  struct Rank {
    std::vector<std::vector<T>> w, m, v, local, reduced;
  };
  std::vector<Rank>& ranks() { return all_; }
  const Findings& findings() const { return engine_->findings(); }
  Engine& engine() { return *engine_; }
  std::int64_t steps() const { return step_; }  // taken

  float lr = 0.01F;
  float clip = 1e30F;
  bool has_checks = false;
  std::int32_t restart = 0;
  bool has_edit = false;
  bool has_updates = false;  // rows of the step that the formula takes, of group 1
  bool has_names_of_mindspore = false;
  float beta2 = 0.95F;
  std::optional<double> declared_beta2;  // where it is not that
  bool is_fused = false;                 // as the group says
  bool has_known_formula = true;         // the record names the optimizer
  bool are_independent = false;          // unreduced gradients of ranks
  bool are_unrelated = false;            // no wrapper is there, and nothing says what ranks hold
  bool forward_changes = false;          // every weight, as the record says
  bool moments_are_before = false;       // read before the step, as the record says
  bool rank_1_by_operations = false;     // whose sums have other low bits
  float decay = 0.0F;
  std::vector<std::int32_t> attempts;  // by rank, of this step; empty: the first
  // Ranks hold shards of all but unreduced gradients, as FSDP2 cuts a vector; so many in a group.
  int shards = 0;
  std::optional<std::pair<std::size_t, std::size_t>> lost;  // tensor, rank: no row of its gradient
  int micro_steps = 1;
  bool reduces_each = false;  // micro step by itself; else all at the end
  // Between the reduction and the step, and between two steps.
  std::function<void()> after_backward, before_step, after_update;

  void step() {
    if (before_step) before_step();
    if (step_ == 0 && has_known_formula) {
      for (const std::int32_t rank : numbers_) engine_->know_formula(rank, 0);
    }
    if (has_edit) {
      for (const std::int32_t rank : numbers_) engine_->announce_edit(restart, rank, seq_);
    }
    StepEvidence evidence(restart, step_);
    each([&](std::size_t i) { observe_all(evidence, Quantity::weight_before, i, &Rank::w); });
    backward(evidence);
    if (after_backward) after_backward();
    clip_all();
    each([&](std::size_t i) { observe_all(evidence, Quantity::grad_reduced, i, &Rank::reduced); });
    for (Rank& rank : all_) each([&](std::size_t i) { move(rank, i); });
    if (after_update) after_update();
    each([&](std::size_t i) {
      observe_all(evidence, Quantity::weight_after, i, &Rank::w);
      if (formula_ == Formula::sgd) return;
      const bool is_adam = formula_ == Formula::adam;
      observe_all(evidence, is_adam ? Quantity::exp_avg : Quantity::momentum_buffer, i, &Rank::m);
      if (is_adam) observe_all(evidence, Quantity::exp_avg_sq, i, &Rank::v);
    });
    if (has_updates) each([&](std::size_t i) { observe_updates(evidence, i); });
    declare();
    engine_->take(std::move(evidence));
    ++step_;
  }

 private:
  float draw() { return std::normal_distribution<float>()(random_); }
  void each(const std::function<void(std::size_t)>& use) {
    for (std::size_t i = 0; i < sizes_.size(); ++i) use(i);
  }

  void backward(StepEvidence& evidence) {
    std::vector<Rank> before;
    for (accum_ = 0; accum_ < micro_steps; ++accum_) {
      before = all_;
      draw_gradients();
      if (accum_ > 0 && !reduces_each) add_gradients(before, &Rank::local);
      each(
          [&](std::size_t i) { observe_all(evidence, Quantity::grad_unreduced, i, &Rank::local); });
      reduce();
      if (accum_ > 0 && reduces_each) add_gradients(before, &Rank::reduced);
    }
    accum_ = micro_steps - 1;
  }

  void add_gradients(const std::vector<Rank>& before, std::vector<std::vector<T>> Rank::*member) {
    for (std::size_t r = 0; r < all_.size(); ++r) {
      for (std::size_t i = 0; i < sizes_.size(); ++i) {
        for (std::size_t at = 0; at < sizes_[i]; ++at) {
          T& x = (all_[r].*member)[i][at];
          x = rounded<T>(to_float((before[r].*member)[i][at]) + to_float(x));
        }
      }
    }
  }

  void draw_gradients() {
    for (Rank& rank : all_) {
      rank.local.clear();
      for (std::size_t i = 0; i < sizes_.size(); ++i) {
        // Of one sign, of both, sparse, all alike: what rounds alike adds up.
        const float shift = i % 4 == 1 ? 3.0F : 0.0F;
        const float same = draw();
        std::vector<T>& g = rank.local.emplace_back(sizes_[i]);
        for (T& x : g) {
          const float value = i % 4 == 3 ? same : draw() + shift;
          x = rounded<T>(i % 4 == 2 && draw() > 0.5F ? 0.0F : value * std::exp2(-float(i)));
        }
      }
    }
  }

  void reduce() {
    for (Rank& rank : all_) rank.reduced = rank.local;
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      for (std::size_t at = 0; at < sizes_[i]; ++at) {
        T sum = all_.front().local[i][at];
        for (std::size_t r = 1; r < all_.size(); ++r) {
          sum = rounded<T>(to_float(sum) + to_float(all_[r].local[i][at]));
        }
        const T mean = rounded<T>(to_float(sum) / static_cast<float>(ranks_));
        for (Rank& rank : all_) rank.reduced[i][at] = mean;
      }
    }
  }

  void clip_all() {
    for (Rank& rank : all_) {
      double sum_sq = 0.0;
      for (const auto& g : rank.reduced) {
        for (const T x : g) sum_sq += static_cast<double>(to_float(x)) * to_float(x);
      }
      const float factor = std::min(1.0F, clip / static_cast<float>(std::sqrt(sum_sq)));
      if (factor == 1.0F) continue;
      for (auto& g : rank.reduced) {
        for (T& x : g) x = rounded<T>(to_float(x) * factor);
      }
    }
  }

  void move(Rank& rank, std::size_t i) {
    const float b1 = 0.9F, b2 = beta2, t = static_cast<float>(step_ + 1);
    for (std::size_t at = 0; at < sizes_[i]; ++at) {
      const float g = to_float(rank.reduced[i][at]);
      T &w = rank.w[i][at], &m = rank.m[i][at], &v = rank.v[i][at];
      if (formula_ == Formula::adam) {
        m = rounded<T>(to_float(m) + (1.0F - b1) * (g - to_float(m)));
        v = rounded<T>(to_float(v) * b2 + (1.0F - b2) * g * g);
        const float m_hat = to_float(m) / (1.0F - std::pow(b1, t));
        const float v_hat = to_float(v) / (1.0F - std::pow(b2, t));
        w = rounded<T>(to_float(w) * (1.0F - lr * decay));
        w = rounded<T>(to_float(w) - lr * m_hat / (std::sqrt(v_hat) + 1e-8F));
      } else if (formula_ == Formula::momentum) {
        m = rounded<T>(step_ == 0 ? g : 0.9F * to_float(m) + g);
        w = rounded<T>(to_float(w) - lr * to_float(m));
      } else {
        w = rounded<T>(to_float(w) - lr * g);
      }
    }
  }

  void declare() {
    const auto say = [&](const char* name, double value) {
      for (const std::int32_t rank : numbers_) {
        engine_->declare(restart, rank, 0, 0, name, value);
        if (has_updates) engine_->declare(restart, rank, 0, 1, name, value);
      }
    };
    say("lr", static_cast<double>(lr));
    say("weight_decay", static_cast<double>(decay));
    if (has_updates) {  // a group that moves nothing here, though its values explain much
      for (const std::int32_t rank : numbers_) engine_->declare(restart, rank, 0, 0, "lr", 0.0);
    }
    if (formula_ == Formula::adam) {
      say(has_names_of_mindspore ? "beta1" : "betas.0", static_cast<double>(0.9F));
      say(has_names_of_mindspore ? "beta2" : "betas.1",
          declared_beta2.value_or(static_cast<double>(beta2)));
      if (is_fused) say("fused", 1.0);
      if (has_names_of_mindspore) say("loss_scale", 1.0);
      say("eps", 1e-8);
      if (!has_names_of_mindspore) say("amsgrad", 0.0);
      say("decoupled_weight_decay", 1.0);
    } else {
      say("momentum", formula_ == Formula::momentum ? static_cast<double>(0.9F) : 0.0);
      say("dampening", 0.0);
      say("nesterov", 0.0);
    }
  }

  void observe_all(StepEvidence& evidence, Quantity quantity, std::size_t i,
                   std::vector<std::vector<T>> Rank::*member) {
    for (std::size_t r = 0; r < all_.size(); ++r) {
      if (quantity == Quantity::grad_reduced && lost == std::pair(i, r)) continue;
      const std::vector<T>& elements = (all_[r].*member)[i];
      std::int64_t begin = 0, size = std::ssize(elements);
      if (shards > 0 && quantity != Quantity::grad_unreduced) {
        const std::int64_t most = (size + shards - 1) / shards;
        begin = std::min(size, most * (static_cast<std::int64_t>(r) % shards));
        size = std::min(size - begin, most);
      }
      TensorView view;
      view.data = elements.data() + begin;
      view.dtype = std::is_same_v<T, float> ? DType::float32 : DType::bfloat16;
      view.ndim = 1;
      view.sizes = &size;
      trainmon::Check check;
      const RowState state = measure(view, begin, check);
      add(evidence, quantity, i, r, view.dtype, state, row_check(check), begin);
    }
  }

  void observe_updates(StepEvidence& evidence, std::size_t i) {
    for (std::size_t r = 0; r < all_.size(); ++r) {
      const std::int64_t size = std::ssize(all_[r].w[i]);
      const auto view = [&](const std::vector<T>& elements) {
        const DType dtype = std::is_same_v<T, float> ? DType::float32 : DType::bfloat16;
        return TensorView{.data = elements.data(), .dtype = dtype, .ndim = 1, .sizes = &size};
      };
      const TensorView m = view(all_[r].m[i]), v = view(all_[r].v[i]);
      const TensorView moved_by = formula_ == Formula::momentum ? m : view(all_[r].reduced[i]);
      const UpdateFormula formula =
          formula_ == Formula::adam
              ? adam_update(m, v, static_cast<double>(step_ + 1), static_cast<double>(0.9F),
                            static_cast<double>(beta2), 1e-8)
              : plain_update(moved_by);
      trainmon::Check check;
      const RowState state = measure(formula, 0, check);
      add(evidence, Quantity::update, i, r, dtype_of(formula), state, row_check(check));
    }
  }

  void add(StepEvidence& evidence, Quantity quantity, std::size_t i, std::size_t r, DType dtype,
           const RowState& state, const RowCheck& taken, std::int64_t begin = 0) {
    Observation one = observe(state, 0, 1.0, has_checks ? &taken : nullptr);
    one.tensor = static_cast<std::uint32_t>(i);
    one.quantity = quantity;
    one.rank = static_cast<std::int32_t>(r);
    one.seq = seq_++;
    one.dtype = dtype;
    one.accum = accum_;
    one.is_replicated = !are_unrelated && shards == 0 && quantity != Quantity::grad_unreduced &&
                        quantity != Quantity::update;
    one.part = static_cast<std::uint64_t>(begin);
    if (quantity == Quantity::update) one.group = 1;
    one.is_independent = are_unrelated || (are_independent && quantity == Quantity::grad_unreduced);
    one.forward_changes = forward_changes && quantity == Quantity::weight_before;
    one.is_before_step =
        moments_are_before && (quantity == Quantity::exp_avg || quantity == Quantity::exp_avg_sq);
    one.by_operations = rank_1_by_operations && r == 1;
    if (one.by_operations) one.digest ^= 1;
    if (!attempts.empty()) one.attempt = attempts[r];
    evidence.add(one);
  }

  std::mt19937_64 random_;
  const Formula formula_;
  const std::vector<std::size_t> sizes_;
  const int ranks_;
  std::vector<std::int32_t> numbers_;
  std::vector<Rank> all_;
  std::vector<Tensor> tensors_;
  std::optional<Engine> engine_;
  std::int64_t step_ = 0;
  std::int32_t accum_ = 0;  // the micro step
  std::uint64_t seq_ = 0;
};

inline const std::vector<std::size_t> kSizes = {1, 3, 40, 700, 5000, 64, 2, 257};

// All reduced gradients of all ranks.
template <typename T>
void multiply(Training<T>& training, float factor) {
  for (auto& rank : training.ranks()) {
    for (auto& g : rank.reduced) {
      for (T& x : g) x = rounded<T>(to_float(x) * factor);
    }
  }
}

// Ten steps, a fault in the seventh, five more.
inline Finding found_after(Training<float>& training, const std::function<void()>& between,
                           const std::function<void()>& gradients) {
  for (int step = 0; step < 12; ++step) {
    training.before_step = step == 7 ? between : nullptr;
    training.after_backward = step == 7 ? gradients : nullptr;
    training.step();
  }
  const auto verdict = training.findings().verdict();
  if (!verdict) {
    ADD_FAILURE() << "nothing was found";
    return {};
  }
  return training.findings().all()[*verdict];
}

inline void expect_place(const Finding& one, Check check, Stage stage,
                         std::vector<std::int32_t> ranks, std::vector<std::uint32_t> tensors) {
  EXPECT_EQ(check_name(one.check), check_name(check));
  EXPECT_EQ(stage_name(one.stage), stage_name(stage));
  EXPECT_EQ(one.step, 7);
  EXPECT_EQ(one.ranks, ranks);
  EXPECT_EQ(one.tensors, tensors);
  EXPECT_TRUE(one.certain);
}

}  // namespace trainmon::detect
