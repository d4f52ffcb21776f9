// The check reduce: lost contributions, wrong factors, and clipping, which is none.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "detect/training.h"

namespace trainmon::detect {
namespace {

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
  const Finding one = found_after(training, nullptr, [&] { multiply(training, 3.0F); });
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
    multiply(training, 0.9999999F);
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
        multiply(training, factor);
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

// Whoever accumulates more from a step on may divide by hand. What accumulated all along does not.
TEST(Engine, AFactorThatBeginsWithAsManyBackwardsIsNoVerdict) {
  for (const bool is_ramp : {true, false}) {
    Training<float> training(31, 2, {20, 90, 300, 7}, Formula::adam);
    training.has_checks = true;
    training.before_step = [&] { training.micro_steps = is_ramp && training.steps() < 6 ? 1 : 4; };
    training.after_backward = [&] {
      if (training.steps() >= 6) multiply(training, 0.25F);
    };
    for (int i = 0; i < 20; ++i) training.step();
    ASSERT_EQ(training.findings().all().size(), 1U);
    const Finding& one = training.findings().all().front();
    EXPECT_EQ(check_name(one.check), "reduce");
    EXPECT_EQ(one.step, 6);
    EXPECT_EQ(one.certain, !is_ramp) << one.text;
  }
}

TEST(Engine, AFilterOfOneTensorHidesNothingOfAnotherOne) {
  Training<float> training(8, 2, std::vector<std::size_t>(10, 30), Formula::adam);
  training.has_checks = true;
  for (int step = 0; step < 12; ++step) {
    training.after_backward = [&] {
      for (auto& rank : training.ranks()) {
        if (step == 1) rank.reduced[9][3] *= 0.5F;
        if (step == 7) rank.reduced[1][3] *= 0.5F;
      }
    };
    training.step();
  }
  const auto verdict = training.findings().verdict();
  ASSERT_TRUE(verdict);
  expect_place(training.findings().all()[*verdict], Check::reduce, Stage::grad_reduced, {0, 1},
               {1});
}

// The findings of 40 steps whose gradients are multiplied by what `factor` says of each step.
template <typename T>
Findings multiplied(const std::function<float(std::int64_t)>& factor, bool has_checks) {
  Training<T> training(34, 2, kSizes, Formula::adam);
  training.has_checks = has_checks;
  training.after_backward = [&] { multiply(training, factor(training.steps())); };
  for (int i = 0; i < 40; ++i) training.step();
  return training.findings();
}

// As tokens in a batch are more or fewer.
float by_tokens(std::int64_t step) {
  return 1.2F + 0.7F * std::sin(1.7F * static_cast<float>(step) + 0.5F);
}

TEST(Engine, AFactorOfAllGradientsThatVariesIsNoVerdict) {
  const auto late = [](std::int64_t step) { return step < 20 ? 1.0F : by_tokens(step); };
  const auto at_times = [](std::int64_t step) { return step % 10 == 9 ? 2.0F : 1.0F; };
  // Until 8 and from then on another one, each for a while.
  const auto by_stages = [](std::int64_t step) { return step < 8 ? by_tokens(step) / 2 : 0.5F; };
  for (const bool has_checks : {true, false}) {
    for (const auto& factor :
         std::vector<std::function<float(std::int64_t)>>{by_tokens, late, at_times, by_stages}) {
      const Findings found = multiplied<float>(factor, has_checks);
      EXPECT_FALSE(found.verdict()) << found.all()[*found.verdict()].text;
      EXPECT_FALSE(found.all().empty());
      EXPECT_LE(found.all().size(), 2U);
      EXPECT_FALSE(multiplied<Bf16>(factor, has_checks).verdict());
    }
  }
}

// Sums and norms of a gradient of two ranks, and what it was reduced to in the end.
struct Sums {
  std::int64_t count;
  double local[2], norms[2], reduced, norm, absmax;
};

// Of a step whose reduced gradients are the mean, and of one where they are what `all` says.
Engine told_sums(const std::vector<Sums>& all, DType dtype) {
  std::vector<Tensor> tensors;
  for (std::size_t i = 0; i < all.size(); ++i) tensors.push_back({"t" + std::to_string(i), 0, 0});
  Engine engine(tensors, {0, 1});
  for (std::int64_t step = 0; step < 2; ++step) {
    StepEvidence evidence(0, step);
    const auto add = [&](std::size_t i, std::int32_t rank, Quantity quantity, double sum,
                         double norm, double absmax) {
      RowState state;
      state.count = all[i].count;
      state.sum = sum;
      state.mean = sum / static_cast<double>(state.count);
      state.sum_sq = norm * norm;
      state.max = state.absmax = absmax;
      Observation one = observe(state, 0, 1.0, nullptr);
      one.tensor = static_cast<std::uint32_t>(i);
      one.quantity = quantity;
      one.rank = rank;
      one.dtype = dtype;
      one.is_replicated = quantity == Quantity::grad_reduced;
      evidence.add(one);
    };
    for (std::size_t i = 0; i < all.size(); ++i) {
      const Sums& g = all[i];
      for (std::int32_t rank = 0; rank < 2; ++rank) {
        add(i, rank, Quantity::grad_unreduced, g.local[rank], g.norms[rank], 0.0123456);
        // Not clipped before: their mean.
        const bool is_clipped = step == 1;
        add(i, rank, Quantity::grad_reduced,
            is_clipped ? g.reduced : (g.local[0] + g.local[1]) / 2.0, g.norm, g.absmax);
      }
    }
    engine.take(std::move(evidence));
  }
  EXPECT_EQ(engine.findings().count_of(Check::reduce), 2 * 2 * std::ssize(all));
  return engine;
}

// A sound step in bfloat16, clipped by 0.79: seven sums are smaller than their rounding, so only
// one tells the factor.
TEST(Engine, ClippingThatNoSumTellsWellIsNoVerdict) {
  const std::vector<Sums> all = {{16,
                                  {0.0333709717, -0.0279331207},
                                  {0.0140910476, 0.0188293937},
                                  0.00220108,
                                  0.0063719776,
                                  0.003540039},
                                 {128,
                                  {-0.0726561546, -0.019112587},
                                  {0.0406981753, 0.0345126376},
                                  -0.036940247,
                                  0.0199850937,
                                  0.004699707},
                                 {16,
                                  {2.28881836e-05, 0.000129699707},
                                  {0.0432165412, 0.0564970265},
                                  6.1988831e-05,
                                  0.0211503882,
                                  0.0101928711},
                                 {256,
                                  {-0.000206157565, 6.67274e-05},
                                  {0.0777652186, 0.0689081647},
                                  5.9366226e-05,
                                  0.0390513264,
                                  0.0085449219},
                                 {16,
                                  {0.0254211426, -0.0178098679},
                                  {0.0207143639, 0.0211816671},
                                  0.00306618,
                                  0.0074333107,
                                  0.0036773682},
                                 {16,
                                  {-0.0034160614, 0.0171751976},
                                  {0.0194347105, 0.0183759924},
                                  0.00553322,
                                  0.0086889679,
                                  0.0044250488},
                                 {4,
                                  {-0.0710449219, 0.0661277771},
                                  {0.0468168693, 0.0420986397},
                                  -0.00189209,
                                  0.0189862507,
                                  0.0115966797},
                                 {64,
                                  {0.00225090981, -0.00747966766},
                                  {0.159713641, 0.145284791},
                                  -0.00205469,
                                  0.0846325144,
                                  0.0354003906}};
  const Engine engine = told_sums(all, DType::bfloat16);
  EXPECT_TRUE(engine.findings().all().empty()) << engine.findings().all().front().text;
}

// The sum of one gradient is nothing but rounding, as that of the bias in front of a softmax.
TEST(Engine, ASumThatIsRoundingTellsNoFactor) {
  const std::vector<Sums> all = {{16, {0.3, 0.1}, {0.4, 0.5}, 0.1, 0.2345, 0.1037},
                                 {16, {0.5, 0.2}, {0.6, 0.5}, 0.21, 0.3217, 0.1037},
                                 {64, {0.7, 0.3}, {0.6, 0.9}, 0.41, 0.5217, 0.1037},
                                 {32, {0.2, 0.3}, {0.6, 0.7}, 0.19, 0.3819, 0.1037},
                                 {4, {2e-9, -1.9e-9}, {0.1, 0.2}, 0.003, 0.1093, 0.1037}};
  const Engine engine = told_sums(all, DType::float32);
  ASSERT_FALSE(engine.findings().all().empty());
  for (const Finding& one : engine.findings().all()) {
    EXPECT_EQ(one.text.find("times the mean"), std::string::npos) << one.text;
  }
}

TEST(Engine, AFactorAboveOneThatBeginsAndStaysIsCertain) {
  for (const std::int64_t begin : {5, 20}) {
    const auto sum = [&](std::int64_t step) { return step < begin ? 1.0F : 2.0F; };
    for (const bool has_checks : {true, false}) {
      for (const Findings& found :
           {multiplied<float>(sum, has_checks), multiplied<Bf16>(sum, has_checks)}) {
        ASSERT_TRUE(found.verdict());
        const Finding& one = found.all()[*found.verdict()];
        EXPECT_EQ(check_name(one.check), "reduce");
        EXPECT_EQ(one.step, begin);
        EXPECT_EQ(one.ranks, (std::vector<std::int32_t>{0, 1}));
      }
    }
  }
}

// Limits that nobody writes; they clip from step 9 on.
TEST(Engine, ClippingOfSingleTensorsByAnyLimitIsNoVerdict) {
  const auto by_value = [](std::vector<float>& g, std::size_t) {
    for (float& x : g) x = std::clamp(x, -0.0123457F, 0.0123457F);
  };
  const auto by_value_of_one = [&](std::vector<float>& g, std::size_t i) {
    if (i == 4) by_value(g, i);
  };
  const auto adaptively = [](std::vector<float>& g, std::size_t i) {
    double sum_sq = 0.0;
    for (const float x : g) sum_sq += static_cast<double>(x) * x;
    const double limit = 0.0123457 * (1.0 + static_cast<double>(i));
    const float factor = std::min(1.0F, static_cast<float>(limit / std::sqrt(sum_sq)));
    for (float& x : g) x *= factor;
  };
  const std::vector<std::function<void(std::vector<float>&, std::size_t)>> all = {
      by_value, by_value_of_one, adaptively};
  for (const auto& clip : all) {
    for (const bool has_checks : {true, false}) {
      Training<float> training(41, 2, kSizes, Formula::adam);
      training.has_checks = has_checks;
      training.after_backward = [&] {
        for (auto& rank : training.ranks()) {
          for (std::size_t i = 0; training.steps() > 8 && i < kSizes.size(); ++i) {
            clip(rank.reduced[i], i);
          }
        }
      };
      for (int i = 0; i < 20; ++i) training.step();
      EXPECT_FALSE(training.findings().verdict());
      EXPECT_LE(training.findings().all().size(), 5U);
    }
  }
}

TEST(Engine, WhereNothingSaysHowRanksRelateNoMeanIsChecked) {
  Training<float> training(35, 2, kSizes, Formula::adam);
  training.are_independent = true;
  training.after_backward = [&] { multiply(training, training.steps() < 9 ? 1.0F : 3.0F); };
  for (int i = 0; i < 20; ++i) training.step();
  EXPECT_TRUE(training.findings().all().empty());
  EXPECT_EQ(training.findings().count_of(Check::reduce), 0);
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

// A norm of 0.5 may be a limit, but not where the gradient is longer than the mean or another one.
TEST(Engine, ARoundNormByChanceHidesNothing) {
  for (const bool is_longer : {true, false}) {
    Training<float> training(16, 2, kSizes, Formula::adam);
    training.has_checks = true;  // one sum is a multiple of another one
    const Finding one = found_after(training, nullptr, [&] {
      double sum_sq = 0.0;
      for (const float x : training.ranks()[0].reduced[4]) sum_sq += static_cast<double>(x) * x;
      const double norm = std::sqrt(sum_sq);
      const double longer = 2.0 * std::pow(10.0, std::ceil(std::log10(norm)));
      const double round = is_longer ? longer : 0.5;
      for (auto& rank : training.ranks()) {
        std::vector<float>& reduced = rank.reduced[4];
        if (!is_longer) std::ranges::reverse(reduced);
        for (float& x : reduced) x = static_cast<float>(x * round / norm);
      }
    });
    expect_place(one, Check::reduce, Stage::grad_reduced, {0, 1}, {4});
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

// Gradients add up over three micro steps, and rank 1 has no row of the last one. That its rows
// were lost is said, or it was paused until the next step.
TEST(Engine, AMicroStepWhoseRowsAreNotThereIsNoReduction) {
  for (const auto& [is_said, is_paused] :
       {std::pair(false, false), std::pair(true, false), std::pair(false, true)}) {
    const std::vector<Tensor> tensors = {{"a", 0, 0}, {"b", 0, 0}};
    Engine engine(tensors, {0, 1});
    if (is_said) engine.announce_loss(0, 1);
    std::uint64_t seq = 0;
    for (std::int64_t step = 0; step < 12; ++step) {
      StepEvidence evidence(0, step);
      const auto add = [&](std::uint32_t tensor, Quantity quantity, std::int32_t rank,
                           std::int32_t accum, double sum) {
        Observation row;
        row.tensor = tensor;
        row.quantity = quantity;
        row.rank = rank;
        row.accum = accum;
        row.seq = ++seq;
        row.is_replicated = quantity == Quantity::grad_reduced;
        row.digest = seq;
        row.count = 4.0;
        row.sum = sum;
        row.sum_sq = sum * sum / 4.0;
        row.absmax = std::abs(sum) / 4.0;
        evidence.add(row);
      };
      for (std::uint32_t tensor = 0; tensor < 2; ++tensor) {
        const double unit = 1.37 + 0.31 * static_cast<double>(step % 5) + tensor;
        double all = 0.0;
        for (std::int32_t rank = 0; rank < 2; ++rank) {
          for (std::int32_t micro = 0; micro < 3; ++micro) {
            const double share = rank == 0 ? 1.0 : (tensor == 0 ? -0.4 : 0.7);
            const double total = unit * (micro + 1) * share;
            if (micro == 2) all += total / 2.0;
            if (step != 8 || rank == 0 || micro < 2) {
              add(tensor, Quantity::grad_unreduced, rank, micro, total);
            }
          }
        }
        for (std::int32_t rank = 0; rank < 2; ++rank) {
          if (step == 8 && rank == 1 && is_paused) continue;
          add(tensor, Quantity::grad_reduced, rank, 2, all);
        }
      }
      engine.take(std::move(evidence));
    }
    const auto is_of_reduce = [](const Finding& one) { return one.check == Check::reduce; };
    EXPECT_EQ(std::ranges::none_of(engine.findings().all(), is_of_reduce), is_said || is_paused);
    EXPECT_GT(engine.findings().count_of(Check::reduce), 40);
  }
}

}  // namespace
}  // namespace trainmon::detect
