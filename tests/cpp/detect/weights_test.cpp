// The checks gap and update: weights move in the step alone, and as its formula says.
#include <algorithm>

#include "detect/training.h"

namespace trainmon::detect {
namespace {

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

// In every second step from step 7 on: one element, or each of one tensor.
TEST(Engine, ABitThatSticksIsNoProgramThatPutsWeightsBack) {
  for (const bool is_bit : {true, false}) {
    Training<float> training(36, 1, kSizes, Formula::adam);
    training.has_checks = true;
    training.before_step = [&] {
      if (training.steps() < 7 || training.steps() % 2 == 0) return;
      auto& w = training.ranks()[0].w[3];
      if (is_bit) {
        w[20] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(w[20]) ^ 1U << 11);
      } else {
        for (float& one : w) one = std::nextafter(one, one * 2.0F);
      }
    };
    for (int step = 0; step < 20; ++step) training.step();
    const auto verdict = training.findings().verdict();
    ASSERT_EQ(verdict.has_value(), is_bit);
    ASSERT_FALSE(training.findings().all().empty());
    if (!verdict) continue;
    const Finding& one = training.findings().all()[*verdict];
    expect_place(one, Check::gap, Stage::weights, {0}, {3});
  }
}

// As .to(memory_format=torch.channels_last) leaves them.
TEST(Engine, ElementsThatLieInAnotherOrderAreNoVerdict) {
  for (const bool has_checks : {false, true}) {
    for (const bool is_changed : {false, true}) {
      Training<float> training(35, 1, kSizes, Formula::adam);
      training.has_checks = has_checks;
      training.before_step = [&] {
        if (training.steps() != 7) return;
        auto& all = training.ranks()[0];
        for (auto* const held : {&all.w, &all.m, &all.v}) std::ranges::reverse((*held)[4]);
        if (is_changed) all.w[4][9] = std::nextafter(all.w[4][9], 9.0F);
      };
      for (int step = 0; step < 12; ++step) training.step();
      const auto verdict = training.findings().verdict();
      // A fingerprint knows where each element is.
      ASSERT_EQ(verdict.has_value(), is_changed || has_checks);
      if (verdict) {
        expect_place(training.findings().all()[*verdict], Check::gap, Stage::weights, {0}, {4});
      }
    }
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

// One finding of step 7, which is no verdict.
void expect_noticed(const Findings& found, Check check) {
  ASSERT_EQ(found.all().size(), 1U);
  EXPECT_EQ(check_name(found.all().front().check), check_name(check));
  EXPECT_EQ(found.all().front().step, 7);
  EXPECT_FALSE(found.verdict());
}

void scale(std::vector<float>& elements) {
  for (float& x : elements) x *= 0.9F;
}

TEST(Engine, WeightsThatChangeAsProgramsChangeThemAreNoticed) {
  const auto all_of_one_rank = [](Training<float>& training) {
    for (std::size_t i = 0; i < kSizes.size(); ++i) scale(training.ranks()[0].w[i]);
  };
  const auto one_of_all_ranks = [](Training<float>& training) {
    for (auto& rank : training.ranks()) scale(rank.w[4]);
  };
  const std::vector<std::pair<int, std::function<void(Training<float>&)>>> edits = {
      {1, all_of_one_rank}, {2, one_of_all_ranks}, {3, one_of_all_ranks}};
  for (const auto& [ranks, edit] : edits) {
    Training<float> training(36, ranks, kSizes, Formula::adam);
    for (int step = 0; step < 20; ++step) {
      training.before_step = nullptr;
      if (step % 5 == 2 && step > 5) training.before_step = [&] { edit(training); };
      training.step();
    }
    expect_noticed(training.findings(), Check::gap);
  }
}

// As SAM does in every tenth step.
TEST(Engine, RoundingsOfSeveralWeightsInOneStepAreNoticed) {
  Training<float> training(38, 1, kSizes, Formula::adam);
  training.has_checks = true;
  for (int step = 0; step < 20; ++step) {
    training.before_step = nullptr;
    if (step == 7) {
      training.before_step = [&] {
        for (const int i : {2, 3}) {
          for (float& one : training.ranks()[0].w[i]) one = std::nextafter(one, one * 2.0F);
        }
      };
    }
    training.step();
  }
  expect_noticed(training.findings(), Check::gap);
}

// As the weights of a LayerNorm, which are 1 when a critic is clipped for the first time. What
// becomes constant alone is certain.
TEST(Engine, WeightsThatAreAllBeyondALimitAreNoticedBesideOthersOfIt) {
  for (const bool is_alone : {false, true}) {
    Training<float> training(39, 1, kSizes, Formula::adam);
    auto& all = training.ranks()[0].w;
    for (float& one : all[2]) one = 1.0F;
    for (int step = 0; step < 20; ++step) {
      training.before_step = nullptr;
      if (step == 7) {
        training.before_step = [&] {
          for (const std::size_t i : {2U, 4U}) {
            if (is_alone && i == 4U) continue;
            for (float& one : all[i]) one = std::clamp(one, -0.01F, 0.01F);
          }
        };
      }
      training.step();
    }
    ASSERT_EQ(training.findings().verdict().has_value(), is_alone);
    if (!is_alone) expect_noticed(training.findings(), Check::gap);
  }
}

// Of masters in float32 that the user copies into the model, with a rate that begins at zero.
TEST(Engine, WeightsThatNoStepMovesAreNoticed) {
  Training<float> training(37, 1, kSizes, Formula::sgd);
  std::vector<std::vector<float>> kept;
  training.after_update = [&] { training.ranks()[0].w = kept; };
  for (int step = 0; step < 12; ++step) {
    training.lr = step < 6 ? 0.0F : 0.01F;
    training.before_step = [&] {
      if (step > 6) scale(training.ranks()[0].w[2]);
      kept = training.ranks()[0].w;
    };
    training.step();
  }
  EXPECT_FALSE(training.findings().verdict());
  EXPECT_GT(training.findings().count_of(Check::update), 0);
}

TEST(Engine, WeightsThatTheForwardChangesHaveNoGap) {
  Training<float> training(38, 1, kSizes, Formula::adam);
  training.forward_changes = true;
  for (int step = 0; step < 12; ++step) {
    training.before_step = [&] { scale(training.ranks()[0].w[4]); };
    training.step();
  }
  EXPECT_TRUE(training.findings().all().empty());
  EXPECT_EQ(training.findings().count_of(Check::gap), 0);
}

// The loop of the second start projects a weight, and centres gradients.
TEST(Engine, WhatHeldInAnEarlierStartSaysNothing) {
  Training<float> training(42, 2, kSizes, Formula::adam);
  const auto centre = [](std::vector<float>& g) {
    for (float& x : g) x -= 0.125F * g.front();
  };
  for (int step = 0; step < 24; ++step) {
    training.restart = step < 12 ? 0 : 1;
    if (step >= 12) {
      training.before_step = [&] { scale(training.ranks()[1].w[4]); };
      training.after_backward = [&] {
        for (auto& rank : training.ranks()) centre(rank.reduced[4]);
      };
    }
    training.step();
  }
  for (const Finding& one : training.findings().all()) {
    EXPECT_TRUE(!one.certain || one.check == Check::replicas) << one.text;
  }
}

// Every seventh step has another formula.
TEST(Engine, AnOptimizerThatIsNotKnownIsNoVerdict) {
  for (const Formula formula : {Formula::adam, Formula::sgd}) {
    for (const bool is_known : {false, true}) {
      Training<float> training(39, 1, kSizes, formula);
      training.has_known_formula = is_known;
      training.after_update = [&] {
        if (training.steps() % 7 != 0 || training.steps() == 0) return;
        scale(formula == Formula::adam ? training.ranks()[0].m[4] : training.ranks()[0].w[4]);
      };
      for (int step = 0; step < 30; ++step) training.step();
      EXPECT_EQ(training.findings().verdict().has_value(), is_known);
      if (!is_known) {
        expect_noticed(training.findings(),
                       formula == Formula::adam ? Check::exp_avg : Check::update);
      }
    }
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

TEST(Engine, RanksThatAreMeasuredInTwoWaysAreNoReplicas) {
  for (const bool has_checks : {true, false}) {
    Training<float> training(50, 2, kSizes, Formula::adam);
    training.has_checks = has_checks;
    training.rank_1_by_operations = true;
    for (int i = 0; i < 10; ++i) training.step();
    EXPECT_TRUE(training.findings().all().empty());
    // Fingerprints say the same of the elements, whoever took them.
    EXPECT_EQ(training.findings().count_of(Check::replicas) > 0, has_checks);
    EXPECT_GT(training.findings().count_of(Check::reduce), 0);
  }
}

// As the fused kernels of torch on CUDA devices do: 1 - 0.999 is off by 1.3e-5 of itself then.
TEST(Engine, AFusedOptimizerMayRoundItsBetasToFloat32) {
  for (const bool is_fused : {true, false}) {
    Training<float> training(52, 1, kSizes, Formula::adam);
    training.beta2 = 0.999F;
    training.declared_beta2 = 0.999;
    training.is_fused = is_fused;
    for (int i = 0; i < 10; ++i) training.step();
    EXPECT_GT(training.findings().count_of(Check::exp_avg_sq), 0);
    EXPECT_EQ(training.findings().all().empty(), is_fused);
  }
}

TEST(Engine, MomentsOfBeforeTheStepAreNotThoseOfItsGradient) {
  Training<float> training(51, 2, kSizes, Formula::adam);
  training.moments_are_before = true;
  for (int i = 0; i < 10; ++i) training.step();
  EXPECT_TRUE(training.findings().all().empty());
  EXPECT_EQ(training.findings().count_of(Check::exp_avg), 0);
  EXPECT_EQ(training.findings().count_of(Check::exp_avg_sq), 0);
}

}  // namespace
}  // namespace trainmon::detect
