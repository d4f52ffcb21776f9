// Ranks of which nothing says that they go together, and that reduce all the same.
#include "detect/training.h"

namespace trainmon::detect {
namespace {

// Twelve steps with what happens in them.
std::vector<Finding> found_in(Training<float>& training,
                              const std::function<void(int)>& gradients) {
  training.are_unrelated = training.has_checks = true;
  for (int step = 0; step < 12; ++step) {
    training.after_backward = [&] { gradients(step); };
    training.step();
  }
  EXPECT_FALSE(training.findings().verdict());
  return training.findings().all();
}

void forget(Training<float>& training, std::size_t tensor, std::size_t rank) {
  training.ranks()[rank].reduced[tensor] = training.ranks()[rank].local[tensor];
}

TEST(ReducedByHand, WhoReducesAllIsHeldAgainstTheMean) {
  for (const int ranks : {2, 3, 8}) {
    Training<float> training(50, ranks, kSizes, Formula::adam);
    EXPECT_TRUE(found_in(training, [](int) {}).empty());
    EXPECT_GT(training.findings().count_of(Check::reduce, Evidence::sketches), 0);
    EXPECT_GT(training.findings().count_of(Check::replicas), 0);
  }
}

TEST(ReducedByHand, ATensorThatOneRankLeavesOutIsNoticedOnce) {
  for (const int ranks : {2, 3}) {
    Training<float> training(51, ranks, kSizes, Formula::adam);
    const auto found = found_in(training, [&](int step) {
      if (step >= 7) forget(training, 4, 1);
    });
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(found[0].step, 7);
    EXPECT_EQ(found[0].ranks, std::vector<std::int32_t>{1});
    EXPECT_EQ(found[0].tensors, std::vector<std::uint32_t>{4});
  }
}

TEST(ReducedByHand, ATensorThatIsNeverReducedIsNoticedFromTheStartOn) {
  Training<float> training(52, 2, kSizes, Formula::adam);
  const auto found = found_in(training, [&](int) {
    forget(training, 4, 0);
    forget(training, 4, 1);
  });
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].step, 0);
  EXPECT_EQ(found[0].tensors, std::vector<std::uint32_t>{4});
}

TEST(ReducedByHand, WhatBeganWithOtherWeightsIsLeftOut) {
  Training<float> training(53, 2, kSizes, Formula::adam);
  training.ranks()[1].w[4][7] += 1.0F;
  const auto found = found_in(training, [&](int) {
    forget(training, 4, 0);
    forget(training, 4, 1);
  });
  EXPECT_TRUE(found.empty());
}

TEST(ReducedByHand, RanksThatReduceNothingAreNotCompared) {
  Training<float> training(54, 2, kSizes, Formula::adam);
  const auto found = found_in(training, [&](int) {
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      forget(training, i, 0);
      forget(training, i, 1);
    }
  });
  EXPECT_TRUE(found.empty());
  EXPECT_EQ(training.findings().count_of(Check::reduce), 0);
}

TEST(ReducedByHand, RanksThatEndToReduceAreNoticedOnce) {
  Training<float> training(55, 2, kSizes, Formula::adam);
  const auto found = found_in(training, [&](int step) {
    for (std::size_t i = 0; i < kSizes.size() && step >= 7; ++i) {
      forget(training, i, 0);
      forget(training, i, 1);
    }
  });
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].step, 7);
  EXPECT_TRUE(found[0].tensors.empty());
}

}  // namespace
}  // namespace trainmon::detect
