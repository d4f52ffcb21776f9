// The governor against simulated trainings: what their steps cost is known exactly here.
#include "collect/governor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <vector>

namespace trainmon {
namespace {

// A training whose steps take `bare` seconds, and `cost` more when they are recorded, of which our
// hooks see cost / factor; `standing` is what hooks take in a step that is not recorded.
struct Training {
  double bare = 0.2;
  double cost = 0.01;
  double factor = 1.1;
  double standing = 0.0;
  double noise = 0.0;       // standard deviation of a step's length, relative
  double slow_share = 0.0;  // of steps that take half as long again
  std::int64_t every = 1;
  std::uint32_t seed = 1;
};

class Simulation {
 public:
  Simulation(double budget, const Training& training)
      : training(training), governor(budget, training.every), random_(training.seed) {}

  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      const bool recorded =
          step_ % training.every == 0 && governor.keep().takes(step_ / training.every);
      double length = training.bare * std::exp(training.noise * normal_(random_));
      if (uniform_(random_) < training.slow_share) length *= 1.5;
      const double cost = training.standing + (recorded ? training.cost : 0.0);
      const double own = training.standing + (recorded ? training.cost / training.factor : 0.0);
      changes += governor.take({length + cost, own, recorded}) ? 1 : 0;
      spent += cost;
      bare += length;
      recordings += recorded ? 1 : 0;
      ++step_;
    }
  }

  // What the present choice costs in the long run.
  double true_share() const {
    const double kept = governor.keep().share() / static_cast<double>(training.every);
    return (training.standing + kept * training.cost) / training.bare;
  }

  Training training;
  Governor governor;
  int changes = 0;
  int recordings = 0;
  double spent = 0.0;
  double bare = 0.0;

 private:
  std::int64_t step_ = 0;
  std::mt19937 random_;
  std::normal_distribution<double> normal_;
  std::uniform_real_distribution<double> uniform_{0.0, 1.0};
};

TEST(Keep, TakesItsShareOfEveryPeriod) {
  for (std::int64_t of = 1; of <= 256; of *= 2) {
    for (std::int64_t part = 1; part <= of; ++part) {
      std::int64_t taken = 0;
      for (std::int64_t step = 3 * of; step < 4 * of; ++step) taken += Keep{part, of}.takes(step);
      ASSERT_EQ(taken, part) << part << " of " << of;
    }
  }
}

// Ranks choose alone: what one of them keeps, all that keep more have, too.
TEST(Keep, SmallerFractionsAreInLargerOnes) {
  const std::vector<Keep> keeps = {{1, 1024}, {1, 64},  {9, 256}, {1, 16}, {11, 64},
                                   {1, 4},    {13, 32}, {1, 2},   {5, 8},  {15, 16}};
  for (std::size_t i = 1; i < keeps.size(); ++i) {
    ASSERT_LT(keeps[i - 1].share(), keeps[i].share());
    for (std::int64_t step = 0; step < 4096; ++step) {
      if (keeps[i - 1].takes(step)) {
        ASSERT_TRUE(keeps[i].takes(step)) << i << " " << step;
      }
    }
  }
}

TEST(Keep, StepsAreSpreadEvenly) {
  for (const Keep keep : {Keep{3, 8}, Keep{9, 64}, Keep{1, 32}, Keep{15, 16}}) {
    std::int64_t last = 0;
    for (std::int64_t step = 1; step < 4 * keep.of; ++step) {
      if (!keep.takes(step)) continue;
      EXPECT_LE(static_cast<double>(step - last), 2.0 / keep.share()) << keep.part;
      last = step;
    }
  }
}

TEST(Governor, KeepsToTheBudgetAfterFiftySteps) {
  for (const double budget : {0.001, 0.01, 0.02, 0.05, 0.2}) {
    for (const double cost : {1.05, 1.5, 2.0, 3.3, 7.0, 19.0}) {
      Simulation s(budget, {.cost = budget * cost * 0.2});
      s.run(50);
      EXPECT_GE(s.true_share(), 0.8 * budget) << budget << " " << cost;
      EXPECT_LE(s.true_share(), 1.2 * budget) << budget << " " << cost;
      EXPECT_NEAR(s.governor.share(), s.true_share(), 0.1 * budget);
    }
  }
}

TEST(Governor, RecordsEverythingThatFits) {
  Simulation s(0.05, {.cost = 0.2 * 0.04});
  s.run(50);
  EXPECT_EQ(s.governor.keep(), Keep{});
  Simulation rare(0.05, {.cost = 0.2 * 0.4, .every = 10});
  rare.run(100);
  EXPECT_EQ(rare.governor.keep(), Keep{});
  EXPECT_EQ(rare.recordings, 10);
}

// In a known sequence of steps the noise is what it is: 100 trainings, and how many are off.
TEST(Governor, NoisySteps) {
  int off = 0;
  for (std::uint32_t seed = 1; seed <= 100; ++seed) {
    Simulation s(0.01, {.cost = 0.2 * 0.06, .noise = 0.05, .slow_share = 0.05, .seed = seed});
    s.run(50);
    const double ratio = s.true_share() / 0.01;
    off += ratio < 0.8 || ratio > 1.2 ? 1 : 0;
  }
  EXPECT_LE(off, 2);
}

// Hooks that see only half of what they cause: the comparison of steps has to tell.
TEST(Governor, ComparisonsFindWhatHooksDoNotSee) {
  Simulation s(0.01, {.cost = 0.2 * 0.06, .factor = 2.0, .noise = 0.002});
  s.run(50);
  EXPECT_NEAR(s.governor.factor(), 2.0, 0.2);
  EXPECT_NEAR(s.true_share(), 0.01, 0.002);
}

// With steps so noisy that they tell nothing, the clock in the hooks decides.
TEST(Governor, NoiseDoesNotMoveTheFactor) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    Simulation s(0.01, {.cost = 0.2 * 0.02, .noise = 0.5, .seed = seed});
    s.run(400);
    EXPECT_NEAR(s.governor.factor(), 1.1, 0.2) << seed;
  }
}

TEST(Governor, FollowsADrift) {
  Simulation s(0.01, {.cost = 0.2 * 0.03, .noise = 0.01});
  s.run(100);
  EXPECT_NEAR(s.true_share(), 0.01, 0.002);
  s.training.cost *= 4.0;  // longer sequences, say: steps stay as long, activations do not
  s.run(500);
  EXPECT_NEAR(s.true_share(), 0.01, 0.002);
  s.training.bare *= 8.0;
  s.run(1500);
  EXPECT_NEAR(s.true_share(), 0.01, 0.002);
}

TEST(Governor, GoesBackToEveryStepWhenThereIsRoom) {
  Simulation s(0.05, {.cost = 0.2 * 0.2});
  s.run(100);
  EXPECT_LT(s.governor.keep().share(), 0.3);
  s.training.cost = 0.2 * 0.01;
  s.run(400);
  EXPECT_EQ(s.governor.keep(), Keep{});
}

TEST(Governor, DoesNotOscillate) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    Simulation s(0.01, {.cost = 0.2 * 0.037, .noise = 0.02, .slow_share = 0.02, .seed = seed});
    s.run(100);
    s.changes = 0;
    s.run(2000);
    EXPECT_LE(s.changes, 8) << seed;
    EXPECT_NEAR(s.true_share(), 0.01, 0.002) << seed;
  }
}

TEST(Governor, WhatIsSpentIsTheBudget) {
  Simulation s(0.02, {.cost = 0.2 * 0.09, .noise = 0.03});
  s.run(50);
  s.spent = s.bare = 0.0;
  s.run(1000);
  EXPECT_NEAR(s.spent / s.bare, 0.02, 0.004);
}

TEST(Governor, StandingCostCounts) {
  Simulation s(0.01, {.cost = 0.2 * 0.05, .standing = 0.2 * 0.006});
  s.run(50);
  EXPECT_NEAR(s.true_share(), 0.01, 0.002);
  EXPECT_FALSE(s.governor.is_out_of_reach());
}

TEST(Governor, SaysWhenTheBudgetIsOutOfReach) {
  Simulation s(0.001, {.cost = 0.2 * 0.05, .standing = 0.2 * 0.01});
  s.run(50);
  EXPECT_TRUE(s.governor.is_out_of_reach());
  EXPECT_EQ(s.governor.keep(), (Keep{1, 1024}));  // never none at all
}

TEST(Governor, AFindingIsLookedAtCloselyForAWhile) {
  Simulation s(0.01, {.cost = 0.2 * 0.2});
  s.run(100);
  const Keep before = s.governor.keep();
  ASSERT_NE(before, Keep{});
  EXPECT_TRUE(s.governor.found());
  EXPECT_EQ(s.governor.keep(), Keep{});
  s.recordings = 0;
  s.run(Governor::kBurst);
  EXPECT_EQ(s.recordings, Governor::kBurst);
  EXPECT_FALSE(s.governor.in_burst());
  EXPECT_EQ(s.governor.keep(), before);
  EXPECT_FALSE(s.governor.found());  // one after another would be no budget at all
  s.run(Governor::kBurstPause);
  EXPECT_TRUE(s.governor.found());
}

TEST(Governor, NothingIsChosenByNonsense) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  Governor governor(0.01, 1);
  std::mt19937 random(1);
  const std::vector<double> odd = {0.0, -1.0, nan, infinity, 1e300, -infinity};
  for (int i = 0; i < 500; ++i) {
    governor.take({odd[random() % odd.size()], odd[random() % odd.size()], i % 2 == 0});
  }
  const Keep keep = governor.keep();
  EXPECT_GE(keep.part, 1);
  EXPECT_GE(keep.of, keep.part);
  EXPECT_FALSE(std::isnan(governor.share()));
}

// A training whose clock stands still for us, or whose hooks cost nothing.
TEST(Governor, NoCostIsNoReason) {
  Simulation s(0.01, {.cost = 0.0});
  s.run(50);
  EXPECT_EQ(s.governor.keep(), Keep{});
  EXPECT_EQ(s.governor.share(), 0.0);
}

}  // namespace
}  // namespace trainmon
