// The checks of replicas and moments: what ranks have of one tensor, and what follows of it.
#include "detect/training.h"

namespace trainmon::detect {
namespace {

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

// As where rank 1 of two loads or averages its weights: gap alone is not certain of that.
TEST(Engine, OfTwoRanksTheOneWhoseWeightsChangedBetweenStepsIsNamed) {
  for (const bool is_announced : {false, true}) {
    for (const bool do_both : {false, true}) {
      Training<float> training(10, 2, kSizes, Formula::adam);
      training.has_checks = true;
      for (int step = 0; step < 12; ++step) {
        training.has_edit = is_announced && step == 7;
        training.before_step = step != 7 ? std::function<void()>() : [&] {
          for (auto& w : training.ranks()[1].w) w[0] += 0.25F;
          if (!do_both) return;
          for (auto& w : training.ranks()[0].w) w[0] -= 0.25F;
        };
        training.step();
      }
      const auto verdict = training.findings().verdict();
      ASSERT_TRUE(verdict);
      const Finding& one = training.findings().all()[*verdict];
      EXPECT_EQ(check_name(one.check), "replicas");
      EXPECT_EQ(stage_name(one.stage), "weights");
      EXPECT_EQ(one.step, 7);
      const bool is_told = !is_announced && !do_both;
      EXPECT_EQ(one.ranks, is_told ? std::vector<std::int32_t>{1} : (std::vector{0, 1}));
      EXPECT_EQ(one.is_one_of_ranks, !is_told);
    }
  }
}

// As of an optimizer that sends what it moved to other ranks, and does not wait for it in its step.
TEST(Engine, WeightsThatAreSentBehindTheStepAreNoVerdict) {
  for (const bool is_sent : {true, false}) {
    Training<float> training(10, 2, kSizes, Formula::adam);
    training.has_checks = true;
    training.has_known_formula = false;
    for (int step = 0; step < 12; ++step) {
      const bool is_late = step == 6 || step == 8 || step == 11;
      training.after_update = [&] {
        if (!is_late) return;
        auto& w = training.ranks()[1].w[4];
        for (std::size_t i = 0; i < 100; ++i) w[i] += 0.125F;
      };
      training.before_step = [&] {
        if (is_sent) training.ranks()[1].w[4] = training.ranks()[0].w[4];
      };
      training.step();
    }
    const auto verdict = training.findings().verdict();
    EXPECT_EQ(verdict.has_value(), !is_sent);
    ASSERT_FALSE(training.findings().all().empty());
    if (is_sent) {
      const std::string& text = training.findings().all().front().text;
      EXPECT_NE(text.find("sends weights behind the step"), std::string::npos) << text;
    }
  }
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

}  // namespace
}  // namespace trainmon::detect
