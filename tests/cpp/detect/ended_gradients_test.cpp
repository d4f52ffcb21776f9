// Gradients that end while others go on, from rows written by hand.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "detect/engine.h"

namespace trainmon::detect {
namespace {

// Two tensors of one optimizer, one of another one.
class GradientsThatEnd : public ::testing::Test {
 protected:
  using HasRow = std::function<bool(std::int32_t rank, std::uint32_t tensor)>;

  // Steps in which both optimizers step, on two ranks.
  void steps(int count, const HasRow& has_row) {
    for (; count > 0; --count) {
      StepEvidence evidence(restart, step++);
      for (const std::int32_t rank : {0, 1}) {
        for (std::uint32_t tensor = 0; tensor < tensors.size(); ++tensor) {
          ++seq;
          if (has_row(rank, tensor)) evidence.add(gradient(rank, tensor, seq));
        }
      }
      engine.take(std::move(evidence));
    }
  }
  static Observation gradient(std::int32_t rank, std::uint32_t tensor, std::uint64_t seq) {
    Observation one;
    one.tensor = tensor;
    one.quantity = Quantity::grad_reduced;
    one.rank = rank;
    one.count = one.sum = one.sum_sq = one.absmax = 1.0;
    one.is_independent = true;
    one.seq = seq;
    return one;
  }
  static bool all(std::int32_t /*rank*/, std::uint32_t /*tensor*/) { return true; }
  // Of tensor 1.
  void expect_noticed(std::int64_t at, const std::vector<std::int32_t>& ranks) const {
    const std::vector<Finding> all = found();
    ASSERT_EQ(all.size(), 1U);
    EXPECT_EQ(all[0].check, Check::present);
    EXPECT_EQ(all[0].step, at);
    EXPECT_EQ(all[0].ranks, ranks);
    EXPECT_EQ(all[0].tensors, (std::vector<std::uint32_t>{1}));
    EXPECT_FALSE(all[0].certain);
  }
  std::vector<Finding> found() const { return engine.findings_at_end().all(); }

  std::vector<Tensor> tensors = {{"a", 0, 0}, {"b", 0, 0}, {"c", 0, 1}};
  Engine engine{tensors, {0, 1}};
  std::int32_t restart = 0;
  std::int64_t step = 0;
  std::uint64_t seq = 1;
};

bool without_b(std::int32_t /*rank*/, std::uint32_t tensor) {
  return tensor != 1;
}

TEST_F(GradientsThatEnd, AreNoticed) {
  steps(12, all);
  steps(3, without_b);
  EXPECT_TRUE(found().empty());
  steps(1, without_b);
  expect_noticed(12, {0, 1});
  steps(20, without_b);
  expect_noticed(12, {0, 1});
}

TEST_F(GradientsThatEnd, AreNotThoseThatComeBack) {
  steps(12, all);
  steps(10, without_b);
  steps(1, all);
  EXPECT_TRUE(found().empty());
}

TEST_F(GradientsThatEnd, OnOneRankAlone) {
  steps(12, all);
  steps(12, [](std::int32_t rank, std::uint32_t tensor) { return rank == 0 || tensor != 1; });
  EXPECT_TRUE(found().empty());  // as of an expert, which another rank has
}

TEST_F(GradientsThatEnd, MayComeNowAndThen) {
  for (int i = 0; i < 12; ++i) {
    steps(1, all);
    steps(9, without_b);
  }
  EXPECT_TRUE(found().empty());
  steps(40, without_b);
  expect_noticed(111, {0, 1});
}

TEST_F(GradientsThatEnd, MayBeAnnounced) {
  steps(12, all);
  for (const std::int32_t rank : {0, 1}) engine.announce_edit(0, rank, seq + 1);
  steps(20, without_b);
  EXPECT_TRUE(found().empty());
}

TEST_F(GradientsThatEnd, AreLookedForOverARestart) {
  steps(12, all);
  restart = 1;
  step = 8;
  seq = 1;
  steps(12, without_b);
  ASSERT_EQ(found().size(), 1U);
  EXPECT_EQ(found()[0].restart, 1);
  expect_noticed(8, {0, 1});
  restart = 2;
  seq = 1;
  steps(12, without_b);
  EXPECT_EQ(found()[0].restart, 1);
  expect_noticed(8, {0, 1});
}

TEST_F(GradientsThatEnd, OfAnotherModelAreNone) {
  steps(12, without_b);
  restart = 1;
  step = 8;
  seq = 1;
  steps(12, [](std::int32_t /*rank*/, std::uint32_t tensor) { return tensor == 1; });
  EXPECT_TRUE(found().empty());
}

// The first optimizer takes five steps while the second takes one: rows of one number are of
// different times.
TEST_F(GradientsThatEnd, AreNotThoseOfAnOptimizerWithFewerSteps) {
  constexpr std::int64_t kSteps = 100, kTimes = 5;
  for (std::int64_t i = 0; i < kSteps; ++i) {
    StepEvidence evidence(0, i);
    const auto time = static_cast<std::uint64_t>(3 * i + 1);
    for (const std::uint32_t tensor : {0U, 1U}) evidence.add(gradient(0, tensor, time + tensor));
    if (i < kSteps / kTimes) evidence.add(gradient(0, 2, kTimes * time + 2));
    engine.take(std::move(evidence));
  }
  EXPECT_TRUE(found().empty());
}

// The other way round: the first optimizer ends after 60 of its steps, and the second goes on.
TEST_F(GradientsThatEnd, AreThoseOfAnOptimizerWithMoreSteps) {
  constexpr std::int64_t kSteps = 60, kOthers = 40, kTimes = 5;
  for (std::int64_t i = 0; i < kSteps; ++i) {
    StepEvidence evidence(0, i);
    const auto time = static_cast<std::uint64_t>(3 * i + 1);
    for (const std::uint32_t tensor : {0U, 1U}) evidence.add(gradient(0, tensor, time + tensor));
    if (i < kOthers) evidence.add(gradient(0, 2, kTimes * time + 2));
    engine.take(std::move(evidence));
  }
  ASSERT_EQ(found().size(), 1U);
  EXPECT_EQ(found()[0].step, kSteps);
  EXPECT_EQ(found()[0].tensors, (std::vector<std::uint32_t>{0, 1}));
}

}  // namespace
}  // namespace trainmon::detect
