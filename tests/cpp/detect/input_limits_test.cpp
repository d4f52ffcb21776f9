// Ids that were in each call, and sizes that were those of each call, from rows written by hand.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "detect/engine.h"

namespace trainmon::detect {
namespace {

class Limits : public ::testing::Test {
 protected:
  void give(double smallest, double largest, int times = 1, double count = 64.0) {
    for (; times > 0; --times) {
      Input one;
      one.seq = ++seq_;
      one.element = "input.0";
      one.fingerprint = seq_;
      one.count = count;
      one.limits = {smallest, largest};
      StepEvidence evidence(restart_, step_++);
      evidence.add(std::move(one));
      engine_.take(std::move(evidence));
    }
  }
  void begin_again() { ++restart_; }
  void expect_one(std::int64_t step, const std::string& text) const {
    ASSERT_EQ(found().size(), 1U);
    EXPECT_EQ(found()[0].check, Check::input);
    EXPECT_EQ(found()[0].step, step);
    EXPECT_FALSE(found()[0].certain);
    EXPECT_EQ(found()[0].text, text);
  }
  const std::vector<Finding>& found() const { return engine_.findings().all(); }

 private:
  std::vector<Tensor> tensors_;
  Engine engine_{tensors_, {0}};
  std::uint64_t seq_ = 0;
  std::int32_t restart_ = 0;
  std::int64_t step_ = 0;
};

TEST_F(Limits, AnIdThatIsMissingIsNoticedOnce) {
  give(10, 127, 60);
  give(10, 125, 5);
  EXPECT_TRUE(found().empty());
  give(10, 121);
  expect_one(
      60,
      "the largest id in input.0 is not 127 any more, as in each of the 60 calls before, but "
      "125");
  give(10, 127, 60);
  give(10, 121, 60);
  EXPECT_EQ(found().size(), 1U);
}

TEST_F(Limits, SoIsTheSmallest) {
  give(0, 127, 60);
  give(3, 127, 6);
  expect_one(
      60, "the smallest id in input.0 is not 0 any more, as in each of the 60 calls before, but 3");
}

TEST_F(Limits, WhatChancesMissesIsNone) {
  std::mt19937 random(3);
  std::bernoulli_distribution is_there(0.9);
  for (int i = 0; i < 5000; ++i) give(10, is_there(random) ? 127 : 126);
  EXPECT_TRUE(found().empty());
  give(10, 127, 40);  // too few
  give(10, 121, 40);
  EXPECT_TRUE(found().empty());
}

TEST_F(Limits, FlagsMayBeAnything) {
  give(0, 1, 60);
  give(1, 1, 60);
  give(0, 0, 60);
  EXPECT_TRUE(found().empty());
}

TEST_F(Limits, OtherSizesAreOtherBatches) {
  give(10, 127, 60, 64.0);
  give(10, 121, 60, 32.0);
  EXPECT_TRUE(found().empty());
}

TEST_F(Limits, SizesThatARestartChangesAreNoticed) {
  give(10, 127, 20, 512.0);
  begin_again();
  give(10, 127, 2, 96.0);
  EXPECT_TRUE(found().empty());
  give(10, 127, 10, 96.0);
  expect_one(
      20,
      "the model is not given 512 elements as input.0 any more, as in the start before, but 96");
}

TEST_F(Limits, SizesThatDifferInAStartAreNone) {
  for (int i = 0; i < 20; ++i) give(10, 127, 1, 512.0 + i % 3);
  begin_again();
  give(10, 127, 10, 96.0);
  begin_again();
  give(10, 127, 10, 96.0);
  begin_again();
  for (int i = 0; i < 20; ++i) give(10, 127, 1, 512.0 + i % 3);
  EXPECT_TRUE(found().empty());
}

}  // namespace
}  // namespace trainmon::detect
