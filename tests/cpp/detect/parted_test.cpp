// Ranks of which one gives up a backward: from then on they are at different steps.
#include "detect/training.h"

namespace trainmon::detect {
namespace {

// Another rank's gradients of another backward, in all tensors.
void draw_again(Training<float>& training, std::size_t rank, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  for (auto& gradient : training.ranks()[rank].reduced) {
    for (float& x : gradient) x = normal(random);
  }
}

TEST(Parted, ARankThatGivesUpABackwardIsTheVerdictAndNothingIsComparedAfterIt) {
  for (const bool has_checks : {false, true}) {
    for (const std::size_t rank : {0U, 1U, 2U}) {
      std::mt19937_64 random(rank);
      Training<float> training(40, 3, kSizes, Formula::adam);
      training.has_checks = has_checks;
      for (int step = 0; step < 12; ++step) {
        training.attempts.assign(3, 0);
        if (step == 7) training.attempts[rank] = 1;
        training.after_backward =
            step < 7 ? std::function<void()>() : [&] { draw_again(training, rank, random); };
        training.step();
      }
      ASSERT_EQ(training.findings().all().size(), 1U);
      expect_place(training.findings().all().front(), Check::update, Stage::update,
                   {static_cast<std::int32_t>(rank)}, {});
    }
  }
}

TEST(Parted, ABackwardOfOneRankWithoutAStepIsNothing) {
  Training<float> training(41, 2, kSizes, Formula::adam);
  training.has_checks = true;
  for (int step = 0; step < 12; ++step) {
    training.attempts = {0, step % 5 == 3 ? 1 : 0};
    training.step();
  }
  EXPECT_TRUE(training.findings().all().empty());
}

TEST(Parted, OneGradientThatIsLostBesideItIsStillAReduction) {
  Training<float> training(42, 2, kSizes, Formula::adam);
  training.attempts = {0, 1};
  const Finding one = found_after(
      training, nullptr, [&] { training.ranks()[1].reduced[4] = training.ranks()[1].local[4]; });
  expect_place(one, Check::reduce, Stage::grad_reduced, {1}, {4});
}

TEST(Parted, GradientsThatDifferInOneAttemptAreNoPartedRanks) {
  std::mt19937_64 random(3);
  Training<float> training(43, 2, kSizes, Formula::adam);
  const Finding one = found_after(training, nullptr, [&] { draw_again(training, 1, random); });
  EXPECT_EQ(check_name(one.check), "reduce");
  EXPECT_EQ(one.ranks, (std::vector<std::int32_t>{1}));
}

TEST(Parted, AStartBeginsAnew) {
  std::mt19937_64 random(4);
  Training<float> training(44, 2, kSizes, Formula::adam);
  for (int step = 0; step < 16; ++step) {
    training.attempts = {0, step == 3 ? 1 : 0};
    training.restart = step < 8 ? 0 : 1;
    training.after_backward = [&, step] {
      if (step >= 3 && step < 8) draw_again(training, 1, random);
      if (step == 14) training.ranks()[1].reduced[4] = training.ranks()[1].local[4];
    };
    if (step == 8) training.ranks()[1] = training.ranks()[0];
    training.step();
  }
  const std::vector<Finding>& all = training.findings().all();
  ASSERT_GE(all.size(), 3U);
  EXPECT_EQ(check_name(all[0].check), "update");
  EXPECT_EQ(check_name(all[1].check), "gap");  // rank 1 goes on with the weights of rank 0
  EXPECT_EQ(all[1].step, 8);
  EXPECT_EQ(check_name(all[2].check), "reduce");
  EXPECT_EQ(all[2].step, 14);
}

}  // namespace
}  // namespace trainmon::detect
