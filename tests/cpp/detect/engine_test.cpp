// Trainings computed here in the arithmetic of their dtype, measured by the kernels: correct steps
// give no finding whatever their size, and each broken equation is found where it was broken.
#include "detect/engine.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <random>

#include "model/state_fields.h"
#include "stats/check.h"
#include "stats/update.h"

namespace trainmon::detect {
namespace {

struct Bf16 {
  std::uint16_t bits = 0;
};
float to_float(float value) {
  return value;
}
float to_float(Bf16 value) {
  return std::bit_cast<float>(std::uint32_t{value.bits} << 16);
}
template <typename T>
T rounded(float value);
template <>
float rounded<float>(float value) {
  return value;
}
template <>
Bf16 rounded<Bf16>(float value) {  // to nearest, ties to even; finite values
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
  std::int64_t steps() const { return step_; }  // taken

  float lr = 0.01F;
  float clip = 1e30F;
  bool has_checks = false;
  bool has_edit = false;
  bool has_updates = false;  // rows of the step that the formula takes, of group 1
  bool has_names_of_mindspore = false;
  float decay = 0.0F;
  // Between the reduction and the step, and between two steps.
  std::function<void()> after_backward, before_step, after_update;

  void step() {
    if (before_step) before_step();
    if (has_edit) {
      for (const std::int32_t rank : numbers_) engine_->announce_edit(0, rank, seq_);
    }
    StepEvidence evidence(0, step_);
    each([&](std::size_t i) { observe_all(evidence, Quantity::weight_before, i, &Rank::w); });
    backward();
    each([&](std::size_t i) { observe_all(evidence, Quantity::grad_unreduced, i, &Rank::local); });
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

  void backward() {
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
    const float b1 = 0.9F, b2 = 0.95F, t = static_cast<float>(step_ + 1);
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
        engine_->declare(0, rank, 0, 0, name, value);
        if (has_updates) engine_->declare(0, rank, 0, 1, name, value);
      }
    };
    say("lr", static_cast<double>(lr));
    say("weight_decay", static_cast<double>(decay));
    if (has_updates) {  // a group that moves nothing here, though its values explain much
      for (const std::int32_t rank : numbers_) engine_->declare(0, rank, 0, 0, "lr", 0.0);
    }
    if (formula_ == Formula::adam) {
      say(has_names_of_mindspore ? "beta1" : "betas.0", static_cast<double>(0.9F));
      say(has_names_of_mindspore ? "beta2" : "betas.1", static_cast<double>(0.95F));
      if (has_names_of_mindspore) say("loss_scale", 1.0);
      say("eps", 1e-8);
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
      const std::vector<T>& elements = (all_[r].*member)[i];
      const std::int64_t size = std::ssize(elements);
      TensorView view;
      view.data = elements.data();
      view.dtype = std::is_same_v<T, float> ? DType::float32 : DType::bfloat16;
      view.ndim = 1;
      view.sizes = &size;
      trainmon::Check check;
      const RowState state = measure(view, 0, check);
      add(evidence, quantity, i, r, view.dtype, state, row_check(check));
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
                            static_cast<double>(0.95F), 1e-8)
              : plain_update(moved_by);
      trainmon::Check check;
      const RowState state = measure(formula, 0, check);
      add(evidence, Quantity::update, i, r, dtype_of(formula), state, row_check(check));
    }
  }

  void add(StepEvidence& evidence, Quantity quantity, std::size_t i, std::size_t r, DType dtype,
           const RowState& state, const RowCheck& taken) {
    Observation one = observe(state, 0, 1.0, has_checks ? &taken : nullptr);
    one.tensor = static_cast<std::uint32_t>(i);
    one.quantity = quantity;
    one.rank = static_cast<std::int32_t>(r);
    one.seq = seq_++;
    one.dtype = dtype;
    one.is_replicated = quantity != Quantity::grad_unreduced && quantity != Quantity::update;
    if (quantity == Quantity::update) one.group = 1;
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
  std::uint64_t seq_ = 0;
};

const std::vector<std::size_t> kSizes = {1, 3, 40, 700, 5000, 64, 2, 257};

template <typename T>
void expect_clean(int steps, bool has_checks) {
  std::uint64_t seed = 0;
  for (const Formula formula : {Formula::adam, Formula::sgd, Formula::momentum}) {
    for (const int ranks : {1, 2, 3, 8}) {
      for (const float clip : {1e30F, 0.5F}) {
        Training<T> training(++seed, ranks, kSizes, formula);
        training.clip = clip;
        training.has_checks = has_checks;
        for (int step = 0; step < steps; ++step) training.step();
        for (const Finding& one : training.findings().all()) {
          ADD_FAILURE() << check_name(one.check) << " step " << one.step << " tensor "
                        << one.tensors.front() << ": " << one.value << " beyond " << one.bound
                        << ", ranks " << ranks;
        }
        const auto tensor_ranks = static_cast<std::int64_t>(kSizes.size()) * ranks;
        EXPECT_EQ(training.findings().count_of(Check::gap), (steps - 1) * tensor_ranks);
        if (ranks > 1) {
          // Numbers of few bits are round now and then, as limits of clipping are.
          EXPECT_GT(training.findings().count_of(Check::reduce), steps * tensor_ranks * 9 / 10);
          EXPECT_LE(training.findings().count_of(Check::reduce), steps * tensor_ranks);
        }
      }
    }
  }
}

TEST(Engine, CorrectStepsInFloat32GiveNoFinding) {
  expect_clean<float>(40, false);
}

TEST(Engine, CorrectStepsInBfloat16GiveNoFinding) {
  expect_clean<Bf16>(40, false);
}

template <typename T>
void expect_updates_clean() {
  for (const Formula formula : {Formula::adam, Formula::sgd, Formula::momentum}) {
    Training<T> training(31, 2, kSizes, formula);
    training.has_checks = training.has_updates = true;
    training.decay = formula == Formula::adam ? 0.1F : 0.0F;
    for (int step = 0; step < 60; ++step) training.step();
    EXPECT_TRUE(training.findings().all().empty());
    const auto count = static_cast<std::int64_t>(60 * 2 * kSizes.size());
    EXPECT_EQ(training.findings().count_of(Check::update, Evidence::sketches), count);
  }
}

TEST(Engine, CorrectStepsOfAFormulaGiveNoFinding) {
  expect_updates_clean<float>();
  expect_updates_clean<Bf16>();
}

TEST(Engine, CorrectStepsWithChecksGiveNoFinding) {
  expect_clean<float>(80, true);
  expect_clean<Bf16>(80, true);
}

// Ten steps, a fault in the seventh, five more.
Finding found_after(Training<float>& training, const std::function<void()>& between,
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

void expect_place(const Finding& one, Check check, Stage stage, std::vector<std::int32_t> ranks,
                  std::vector<std::uint32_t> tensors) {
  EXPECT_EQ(check_name(one.check), check_name(check));
  EXPECT_EQ(stage_name(one.stage), stage_name(stage));
  EXPECT_EQ(one.step, 7);
  EXPECT_EQ(one.ranks, ranks);
  EXPECT_EQ(one.tensors, tensors);
  EXPECT_TRUE(one.certain);
}

// A tensor of rank 1 that ends its seventh step otherwise than the formula says.
void expect_update(const std::function<void(float& w, float before)>& change) {
  Training<float> training(32, 3, kSizes, Formula::adam);
  training.has_checks = training.has_updates = true;
  training.decay = 0.1F;
  std::vector<float> before;
  training.after_update = [&] {
    std::vector<float>& w = training.ranks()[1].w[4];
    if (training.steps() == 7) {
      for (std::size_t i = 0; i < w.size(); ++i) change(w[i], before[i]);
    }
    before = w;
  };
  for (int step = 0; step < 12; ++step) training.step();
  const auto verdict = training.findings().verdict();
  ASSERT_TRUE(verdict);
  const Finding& one = training.findings().all()[*verdict];
  expect_place(one, Check::update, Stage::update, {1}, {4});
  EXPECT_EQ(one.evidence, Evidence::sketches);
  EXPECT_GT(one.value, one.bound);
}

TEST(Engine, AWeightThatMovesOtherwiseThanItsFormulaIsAnUpdate) {
  // Group 0 has the rate 0: a weight that does not move obeys it, and not its own.
  expect_update([](float& w, float before) { w = before; });
  expect_update([](float& w, float before) { w += w - before; });
  expect_update([](float& w, float) { w *= 1.0F - 0.01F * 0.1F; });
  expect_update([](float& w, float before) { w = before + (w - before) * 1.001F; });
}

TEST(Engine, AnyBitOfAWeightBetweenStepsIsAGap) {
  for (int bit = 0; bit < 32; ++bit) {
    Training<float> training(5, 3, kSizes, Formula::adam);
    const Finding one = found_after(
        training,
        [&] {
          float& w = training.ranks()[1].w[3][20];
          w = std::bit_cast<float>(std::bit_cast<std::uint32_t>(w) ^ (1U << bit));
        },
        nullptr);
    if (!std::isfinite(training.ranks()[1].w[3][20])) continue;
    expect_place(one, Check::gap, Stage::weights, {1}, {3});
  }
}

TEST(Engine, AnAnnouncedEditIsNoGap) {
  Training<float> training(5, 2, kSizes, Formula::adam);
  for (int step = 0; step < 12; ++step) {
    training.has_edit = step == 7;
    training.before_step = step == 7 ? [&] {
      for (auto& rank : training.ranks()) {
        for (auto& w : rank.w) {
          for (float& x : w) x *= 0.5F;
        }
      }
    } : std::function<void()>();
    training.step();
  }
  EXPECT_TRUE(training.findings().all().empty());
}

TEST(Engine, ALostContributionIsAReductionOfItsRank) {
  for (const float clip : {1e30F, 0.5F}) {
    Training<float> training(6, 2, kSizes, Formula::adam);
    training.clip = clip;
    const Finding one = found_after(
        training, nullptr, [&] { training.ranks()[1].reduced[4] = training.ranks()[1].local[4]; });
    expect_place(one, Check::reduce, Stage::grad_reduced, {1}, {4});
    EXPECT_GT(one.value, one.bound);
  }
}

TEST(Engine, AContributionThatAllLackNamesItsRank) {
  for (const float clip : {1e30F, 0.5F}) {
    Training<float> training(6, 3, kSizes, Formula::adam);
    training.clip = clip;
    const Finding one = found_after(training, nullptr, [&] {
      for (std::size_t at = 0; at < kSizes[4]; ++at) {
        for (auto& rank : training.ranks()) {
          rank.reduced[4][at] -= training.ranks()[2].local[4][at] / 3.0F;
        }
      }
    });
    expect_place(one, Check::reduce, Stage::grad_reduced, {2}, {4});
    EXPECT_EQ(one.text, "the reduced gradient lacks the contribution of rank 2");
  }
}

TEST(Engine, ASumInsteadOfAMeanIsAReductionOfAll) {
  Training<float> training(7, 3, kSizes, Formula::sgd);
  const Finding one = found_after(training, nullptr, [&] {
    for (auto& rank : training.ranks()) {
      for (auto& g : rank.reduced) {
        for (float& x : g) x *= 3.0F;
      }
    }
  });
  EXPECT_EQ(check_name(one.check), "reduce");
  EXPECT_EQ(one.step, 7);
  EXPECT_EQ(one.tensors.size(), kSizes.size());
  EXPECT_EQ(one.ranks, (std::vector<std::int32_t>{0, 1, 2}));
}

TEST(Engine, RoundingThatIsAlikeInAllGradientsIsNoFactor) {
  Training<float> training(33, 2, {20, 90, 300, 7}, Formula::adam);
  training.has_checks = true;
  training.after_backward = [&] {
    if (training.steps() < 5) return;
    for (auto& rank : training.ranks()) {
      for (auto& g : rank.reduced) {
        for (float& x : g) x *= 0.9999999F;
      }
    }
  };
  for (int i = 0; i < 30; ++i) training.step();
  EXPECT_TRUE(training.findings().all().empty());
}

// As a division by the world size that is done twice, or by a loss scale that none applied.
TEST(Engine, OneFactorOfAllGradientsInEachStepIsNoClipping) {
  for (const float factor : {0.5F, 1.0F / 1024.0F}) {
    for (const std::int64_t begin : {5, 0}) {
      Training<float> training(31, 2, {20, 90, 300, 7}, Formula::adam);
      training.has_checks = true;
      training.after_backward = [&] {
        if (training.steps() < begin) return;
        for (auto& rank : training.ranks()) {
          for (auto& g : rank.reduced) {
            for (float& x : g) x *= factor;
          }
        }
      };
      for (int i = 0; i < 20; ++i) training.step();
      ASSERT_EQ(training.findings().all().size(), 1U);
      const Finding& one = training.findings().all().front();
      EXPECT_EQ(check_name(one.check), "reduce");
      EXPECT_EQ(one.ranks, (std::vector<std::int32_t>{0, 1}));
      EXPECT_EQ(one.tensors, (std::vector<std::uint32_t>{0, 1, 2, 3}));
      EXPECT_EQ(one.step, begin);
      EXPECT_EQ(one.certain, begin > 0);
      EXPECT_NE(one.text.find("times the mean in each step"), std::string::npos) << one.text;
    }
  }
}

TEST(Engine, ClippingToOneNormHasAnotherFactorInEachStep) {
  for (const float limit : {0.5F, 20.0F, 60.0F}) {
    Training<float> training(32, 2, {20, 90, 300, 7}, Formula::adam);
    training.has_checks = true;
    training.clip = limit;
    for (int i = 0; i < 200; ++i) training.step();
    EXPECT_TRUE(training.findings().all().empty());
  }
}

TEST(Engine, ALowBitOfOneRankOfThreeIsToldByTheMajority) {
  Training<float> training(8, 3, kSizes, Formula::adam);
  const Finding one = found_after(training, nullptr, [&] {
    float& g = training.ranks()[2].reduced[4][17];
    g = std::bit_cast<float>(std::bit_cast<std::uint32_t>(g) ^ 1U);
  });
  expect_place(one, Check::replicas, Stage::grad_reduced, {2}, {4});
}

TEST(Engine, OfTwoRanksThatDifferInALowBitBothAreNamed) {
  Training<float> training(8, 2, kSizes, Formula::adam);
  const Finding one = found_after(training, nullptr, [&] {
    float& g = training.ranks()[1].reduced[4][17];
    g = std::bit_cast<float>(std::bit_cast<std::uint32_t>(g) ^ 1U);
  });
  expect_place(one, Check::replicas, Stage::grad_reduced, {0, 1}, {4});
}

TEST(Engine, LostMomentsAreFoundOnOneRankAndOnAll) {
  for (const auto& [is_second, is_of_mindspore] : {std::pair(false, false), std::pair(true, false),
                                                   std::pair(false, true), std::pair(true, true)}) {
    Training<float> training(9, 2, kSizes, Formula::adam);
    training.has_names_of_mindspore = is_of_mindspore;
    const bool second = is_second;
    const Finding one = found_after(
        training,
        [&] {
          auto& moments = second ? training.ranks()[0].v : training.ranks()[0].m;
          for (float& x : moments[3]) x = 0.0F;
        },
        nullptr);
    expect_place(one, is_second ? Check::exp_avg_sq : Check::exp_avg, Stage::moments, {0}, {3});
  }
}

TEST(Engine, WeightsThatSgdDidNotMoveSoAreAnUpdate) {
  for (const Formula formula : {Formula::sgd, Formula::momentum}) {
    Training<float> training(10, 1, kSizes, formula);
    const Finding one = found_after(training, nullptr, [&] {
      // After the weights before the step were looked at.
      for (float& w : training.ranks()[0].w[4]) w += 0.5F;
    });
    expect_place(one, Check::update, Stage::update, {0}, {4});
  }
}

TEST(Engine, GradientsThatBecomeZeroAreToldWithoutCertainty) {
  Training<float> training(11, 2, kSizes, Formula::adam);
  for (int step = 0; step < 20; ++step) {
    training.after_backward = step < 13 ? std::function<void()>() : [&] {
      for (auto& rank : training.ranks()) {
        for (auto* gradients : {&rank.local, &rank.reduced}) {
          for (float& x : (*gradients)[0]) x = 0.0F;
        }
      }
    };
    training.step();
  }
  ASSERT_FALSE(training.findings().all().empty());
  bool is_told = false;
  for (const Finding& one : training.findings().all()) {
    if (one.check != Check::zero) continue;
    is_told = true;
    EXPECT_FALSE(one.certain);
    EXPECT_EQ(one.step, 13);
    EXPECT_EQ(one.tensors, std::vector<std::uint32_t>{0});
    EXPECT_EQ(one.text,
              "the gradient is zero in three steps in a row, after steps in which it never was");
  }
  EXPECT_TRUE(is_told);
}

TEST(Engine, RatesMayFollowSchedulesAndMayNotJump) {
  const auto found = [](const std::vector<double>& rates) {
    Training<float> training(12, 1, {40}, Formula::sgd);
    for (const double rate : rates) {
      training.lr = static_cast<float>(rate);
      training.step();
    }
    return training.findings().all();
  };
  EXPECT_TRUE(found({0.01, 0.02, 0.03, 0.04, 0.05, 0.05, 0.04, 0.03}).empty());     // warm-up
  EXPECT_TRUE(found({0.1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001}).empty());            // steps
  EXPECT_TRUE(found({0.1, 0.08, 0.04, 0.01, 0.1, 0.08, 0.04, 0.01, 0.1}).empty());  // restarts
  EXPECT_TRUE(found({0.0, 0.0, 0.0, 0.0, 0.01, 0.01}).empty());                     // thawing
  EXPECT_TRUE(found({0.0, 0.01, 0.02, 0.03, 0.04}).empty());                        // from zero
  const std::vector<Finding> jump = found({0.01, 0.01, 0.01, 0.01, 0.03, 0.03});
  ASSERT_EQ(jump.size(), 1u);
  EXPECT_EQ(jump.front().step, 4);
  EXPECT_FALSE(jump.front().certain);
  EXPECT_EQ(jump.front().text,
            "lr of group 0 changed from 0.009999999776482582 to "
            "0.029999999329447746");
}

TEST(Engine, WhatNeverHeldIsSaidOnceAndNotAsCertain) {
  // Gradients that are doubled in every step, and then a fault beside them.
  Training<float> training(13, 2, kSizes, Formula::adam);
  for (int step = 0; step < 12; ++step) {
    training.after_backward = [&] {
      for (auto& rank : training.ranks()) {
        for (auto& g : rank.reduced) {
          for (float& x : g) x *= 2.0F;
        }
      }
      if (step == 7) training.ranks()[1].reduced[4][3] += 1.0F;
    };
    training.step();
  }
  const Finding& first = training.findings().all().front();
  EXPECT_EQ(check_name(first.check), "reduce");
  EXPECT_EQ(first.step, 0);
  EXPECT_FALSE(first.certain);
  const auto verdict = training.findings().verdict();
  ASSERT_TRUE(verdict);
  expect_place(training.findings().all()[*verdict], Check::replicas, Stage::grad_reduced, {0, 1},
               {4});
}

TEST(Engine, ClippingByValueOrByTheNormOfATensorIsNoReduction) {
  for (const bool by_value : {true, false}) {
    Training<float> training(14, 2, kSizes, Formula::adam);
    for (int step = 0; step < 12; ++step) {
      training.after_backward = [&] {
        if (step < 5) return;
        for (auto& rank : training.ranks()) {
          for (auto& g : rank.reduced) {
            double sum_sq = 0.0;
            for (const float x : g) sum_sq += static_cast<double>(x) * x;
            const float factor = std::min(1.0F, 0.25F / static_cast<float>(std::sqrt(sum_sq)));
            for (float& x : g) x = by_value ? std::clamp(x, -0.05F, 0.05F) : x * factor;
          }
        }
      };
      training.step();
    }
    EXPECT_FALSE(training.findings().verdict());
  }
}

// Groups of tensors clipped by factors of their own, from step 5 on; in step 7 a tensor loses the
// contribution of rank 1, and is clipped, too.
template <typename T>
std::optional<Finding> verdict_of_clipped_groups(bool has_checks, bool has_fault) {
  Training<T> training(15, 2, kSizes, Formula::adam);
  training.has_checks = has_checks;
  for (int step = 0; step < 12; ++step) {
    training.after_backward = [&] {
      if (step < 5) return;
      const std::vector<float> factors = {0.3F, 0.3F, 0.3F, 1.0F, 0.71F, 0.71F, 0.71F, 0.3F};
      for (auto& rank : training.ranks()) {
        for (std::size_t i = 0; i < rank.reduced.size(); ++i) {
          if (has_fault && step == 7 && i == 4) {
            for (std::size_t at = 0; at < rank.reduced[i].size(); ++at) {
              rank.reduced[i][at] = rounded<T>(to_float(training.ranks()[0].local[i][at]) / 2.0F);
            }
          }
          const float factor = factors[i] / (1.0F + 0.01F * static_cast<float>(step));
          if (factors[i] == 1.0F) continue;
          for (T& x : rank.reduced[i]) x = rounded<T>(to_float(x) * factor);
        }
      }
    };
    training.step();
  }
  const auto verdict = training.findings().verdict();
  if (!verdict) return std::nullopt;
  return training.findings().all()[*verdict];
}

TEST(Engine, ClippingOfGroupsByFactorsOfTheirOwnIsNoReduction) {
  for (const bool has_checks : {false, true}) {
    EXPECT_FALSE(verdict_of_clipped_groups<float>(has_checks, false));
    EXPECT_FALSE(verdict_of_clipped_groups<Bf16>(has_checks, false));
    const auto found = verdict_of_clipped_groups<float>(has_checks, true);
    ASSERT_TRUE(found);
    expect_place(*found, Check::reduce, Stage::grad_reduced, {1}, {4});
  }
}

TEST(Engine, RanksAreHeldAgainstWhatTheyDeclareThemselves) {
  const std::vector<Tensor> tensors = {{"w", 0, 0}};
  Engine engine(tensors, {0, 1});
  std::uint64_t seq = 0;
  for (std::int64_t step = 0; step < 4; ++step) {
    StepEvidence evidence(0, step);
    for (const std::int32_t rank : {0, 1}) {
      const double lr = rank == 0 ? 0.1 : 0.2;
      for (const auto& [name, value] : {std::pair("lr", lr),
                                        {"momentum", 0.0},
                                        {"dampening", 0.0},
                                        {"nesterov", 0.0},
                                        {"weight_decay", 0.0}}) {
        engine.declare(0, rank, 0, 0, name, value);
      }
      const auto add = [&](Quantity quantity, double sum) {
        Observation one;
        one.quantity = quantity;
        one.rank = rank;
        one.count = 1.0;
        one.sum = sum;
        one.sum_sq = sum * sum;
        one.absmax = std::abs(sum);
        one.digest = std::bit_cast<std::uint64_t>(sum);
        one.seq = seq++;
        evidence.add(one);
      };
      add(Quantity::weight_before, 1.0 - lr * static_cast<double>(step));
      add(Quantity::grad_reduced, 1.0);
      add(Quantity::weight_after, 1.0 - lr * static_cast<double>(step + 1));
    }
    engine.take(std::move(evidence));
  }
  EXPECT_EQ(engine.findings().count_of(Check::update), 8);
  EXPECT_TRUE(engine.findings().all().empty());
}

TEST(Engine, WhatIsMissingIsNotChecked) {
  // Every second step, one rank of three, and a step from another restart.
  const std::vector<Tensor> tensors = {{"w", 0, 0}};
  Engine engine(tensors, {0, 1, 2});
  for (const auto& [restart, step] : {std::pair(0, 0), {0, 2}, {1, 3}, {1, 5}}) {
    StepEvidence evidence(restart, step);
    for (const Quantity quantity : {Quantity::weight_before, Quantity::weight_after}) {
      Observation one;
      one.quantity = quantity;
      one.digest = static_cast<std::uint64_t>(step * 2 + static_cast<int>(quantity));
      evidence.add(one);
    }
    engine.take(std::move(evidence));
  }
  EXPECT_TRUE(engine.findings().all().empty());
  EXPECT_EQ(engine.findings().count_of(Check::gap), 0);
  EXPECT_EQ(engine.findings().count_of(Check::reduce), 0);
  EXPECT_EQ(engine.findings().count_of(Check::replicas), 0);
}

// What leaves every statistic as it was, or the sum.
TEST(Engine, ChecksFindWhatStatisticsCannot) {
  using Fault = std::function<void(Training<float>&)>;
  struct Case {
    const char* name;
    Fault before, gradients;  // between steps; between the reduction and the step
    Check check;
    Stage stage;
    std::vector<std::int32_t> ranks;
  };
  const std::vector<Case> cases = {
      {"two weights change places",
       [](Training<float>& t) { std::swap(t.ranks()[1].w[3][20], t.ranks()[1].w[3][36]); },
       nullptr,
       Check::gap,
       Stage::weights,
       {1}},
      {"two errors of all ranks that cancel",
       nullptr,
       [&](Training<float>& t) {
         for (auto& rank : t.ranks()) {
           rank.reduced[3][20] += 0.03125F;
           rank.reduced[3][37] -= 0.03125F;
         }
       },
       Check::reduce,
       Stage::grad_reduced,
       {0, 1}},
      {"two errors of a first moment that cancel",
       [](Training<float>& t) {
         t.ranks()[1].m[3][20] += 0.03125F;
         t.ranks()[1].m[3][37] -= 0.03125F;
       },
       nullptr,
       Check::exp_avg,
       Stage::moments,
       {1}},
  };
  for (const Case& one : cases) {
    for (const bool has_checks : {false, true}) {
      SCOPED_TRACE(one.name);
      Training<float> training(21, 2, kSizes, Formula::adam);
      training.has_checks = has_checks;
      const auto bind = [&](const Fault& fault) {
        return fault ? [&] { fault(training); } : std::function<void()>();
      };
      for (int step = 0; step < 12; ++step) {
        training.before_step = step == 7 ? bind(one.before) : nullptr;
        training.after_backward = step == 7 ? bind(one.gradients) : nullptr;
        training.step();
      }
      const auto verdict = training.findings().verdict();
      if (!has_checks) {
        const bool is_seen = verdict && training.findings().all()[*verdict].check == one.check;
        EXPECT_FALSE(is_seen) << "statistics see it, too";
        continue;
      }
      ASSERT_TRUE(verdict);
      const Finding& found = training.findings().all()[*verdict];
      expect_place(found, one.check, one.stage, one.ranks, {3});
      EXPECT_NE(found.evidence, Evidence::statistics);
    }
  }
}

}  // namespace
}  // namespace trainmon::detect
