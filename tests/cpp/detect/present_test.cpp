// Rows written by hand: of those that a step had, one is missing in the next.
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <vector>

#include "detect/engine.h"

namespace trainmon::detect {
namespace {

constexpr std::int64_t kFault = 3;
constexpr std::uint32_t kTensor = 1;

// Two ranks, three tensors, with gradients and moments; rows for which `is_left_out` are not there
// from step 3 on.
Findings found(
    const std::function<bool(const Observation&)>& is_left_out,
    const std::function<void(Engine&)>& before = [](Engine&) {}) {
  static const std::vector<Tensor> tensors = {{"a", 0, 0}, {"b", 0, 0}, {"c", 0, 0}};
  Engine engine(tensors, {0, 1});
  before(engine);
  for (std::int64_t step = 0; step < 6; ++step) {
    StepEvidence evidence(0, step);
    for (const std::int32_t rank : {0, 1}) {
      for (std::uint32_t tensor = 0; tensor < tensors.size(); ++tensor) {
        for (const Quantity quantity : {Quantity::grad_reduced, Quantity::exp_avg}) {
          Observation one;
          one.tensor = tensor;
          one.quantity = quantity;
          one.rank = rank;
          one.count = 1.0;
          one.sum = one.sum_sq = one.absmax = 1.0;
          one.is_replicated = true;
          if (step < kFault || !is_left_out(one)) evidence.add(one);
        }
      }
    }
    engine.take(std::move(evidence));
  }
  EXPECT_GT(engine.findings().count_of(Check::present), 0);
  return engine.findings();
}

TEST(Present, ARowThatOneRankAloneHasNotIsTold) {
  const auto is_left_out = [](const Observation& one) {
    return one.rank == 1 && one.tensor == kTensor && one.quantity == Quantity::grad_reduced;
  };
  const Findings all = found(is_left_out);
  ASSERT_EQ(all.all().size(), 1U);  // where it begins
  const Finding& one = all.all().front();
  EXPECT_EQ(one.check, Check::present);
  EXPECT_EQ(one.stage, Stage::grad_reduced);
  EXPECT_EQ(one.step, kFault);
  EXPECT_EQ(one.ranks, (std::vector<std::int32_t>{1}));
  EXPECT_EQ(one.tensors, (std::vector<std::uint32_t>{kTensor}));
  EXPECT_TRUE(one.certain);
}

TEST(Present, RowsOfARankThatLostSomeAreNotMissed) {
  const auto is_left_out = [](const Observation& one) {
    return one.rank == 1 && one.tensor == kTensor && one.quantity == Quantity::grad_reduced;
  };
  EXPECT_TRUE(found(is_left_out, [](Engine& engine) { engine.announce_loss(0, 1); }).all().empty());
}

TEST(Present, WhatNoRankHasOrOneRankDidNotRecordIsNotMissed) {
  const auto is_frozen = [](const Observation& one) { return one.tensor == kTensor; };
  EXPECT_TRUE(found(is_frozen).all().empty());
  const auto is_not_recorded = [](const Observation& one) {
    return one.rank == 1 && one.quantity == Quantity::grad_reduced;
  };
  EXPECT_TRUE(found(is_not_recorded).all().empty());
}

TEST(Present, MomentsThatEndWhileGradientsGoOnAreNoticed) {
  const auto is_left_out = [](const Observation& one) {
    return one.tensor == kTensor && one.quantity == Quantity::exp_avg;
  };
  const Findings all = found(is_left_out);
  ASSERT_EQ(all.all().size(), 1U);
  const Finding& one = all.all().front();
  EXPECT_EQ(one.check, Check::present);
  EXPECT_EQ(one.stage, Stage::moments);
  EXPECT_EQ(one.step, kFault);
  EXPECT_EQ(one.ranks, (std::vector<std::int32_t>{0, 1}));
  EXPECT_FALSE(one.certain);
}

}  // namespace
}  // namespace trainmon::detect
