// What ranks declare of the same weights, from rows written by hand.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "detect/engine.h"

namespace trainmon::detect {
namespace {

class DeclaredOfRanks : public ::testing::Test {
 protected:
  void declare(std::int32_t rank, const char* name, double value, std::int32_t group = 0) {
    engine.declare(0, rank, 0, group, name, value);
  }
  // `end`: what tells the weights of a rank after the step.
  void step(const std::vector<std::uint64_t>& ends, bool is_replicated = true) {
    StepEvidence evidence(0, step_++);
    for (std::uint32_t tensor = 0; tensor < tensors.size(); ++tensor) {
      for (std::size_t rank = 0; rank < ends.size(); ++rank) {
        for (const Quantity quantity : {Quantity::update, Quantity::weight_after}) {
          Observation row;
          row.tensor = tensor;
          row.quantity = quantity;
          row.rank = static_cast<std::int32_t>(rank);
          row.is_replicated = is_replicated && quantity == Quantity::weight_after;
          row.count = 10.0;
          row.sum_sq = row.absmax = 1.0;
          row.group = quantity == Quantity::update ? groups[rank] : -1;
          row.digest = quantity == Quantity::update ? 7 : ends[rank];
          evidence.add(row);
        }
      }
    }
    engine.take(std::move(evidence));
  }
  std::vector<Finding> found() const {
    std::vector<Finding> all = engine.findings().all();
    std::erase_if(all, [](const Finding& one) { return one.check != Check::config; });
    return all;
  }

  std::vector<Tensor> tensors = {{"a", 0, 0}, {"b", 0, 0}};
  std::vector<std::int32_t> groups = {0, 0, 0};  // by rank
  Engine engine{tensors, {0, 1, 2}};

 private:
  std::int64_t step_ = 0;
};

TEST_F(DeclaredOfRanks, AnotherRateOnOneRankIsTheVerdictWhereWeightsDiffer) {
  for (const std::int32_t rank : {0, 1, 2}) declare(rank, "lr", 0.5);
  step({5, 5, 5});
  EXPECT_TRUE(found().empty());
  declare(1, "lr", 0.25);
  step({6, 8, 6});
  step({7, 9, 7});
  ASSERT_EQ(found().size(), 1U);  // said once
  const Finding one = found().front();
  EXPECT_EQ(one.step, 1);
  EXPECT_EQ(one.stage, Stage::update);
  EXPECT_EQ(one.ranks, std::vector<std::int32_t>{1});
  EXPECT_FALSE(one.is_one_of_ranks);
  EXPECT_EQ(one.tensors, (std::vector<std::uint32_t>{0, 1}));
  EXPECT_TRUE(one.certain);
  EXPECT_EQ(one.text,
            "lr of group 0 differs between ranks: 0.25 on rank 1, 0.5 on rank 0 and 1 more");
  const auto verdict = engine.findings().verdict();
  ASSERT_TRUE(verdict);
  EXPECT_EQ(engine.findings().all()[*verdict].check, Check::config);
}

TEST_F(DeclaredOfRanks, AMomentumThatChangesLaterIsANotice) {
  for (int i = 0; i < 20; ++i) {
    for (const std::int32_t rank : {0, 1, 2}) declare(rank, "momentum", i < 12 ? 0.75 : 0.5);
    step({5, 5, 5});
  }
  ASSERT_EQ(found().size(), 1U);
  EXPECT_EQ(found().front().step, 12);
  EXPECT_EQ(found().front().text, "momentum of group 0 changed from 0.75 to 0.5");
  EXPECT_FALSE(found().front().certain);
}

TEST_F(DeclaredOfRanks, AMomentumOfAScheduleIsNone) {
  for (int i = 0; i < 20; ++i) {
    for (const std::int32_t rank : {0, 1, 2}) declare(rank, "momentum", 0.9 - 0.01 * i);
    step({5, 5, 5});
  }
  EXPECT_TRUE(found().empty());
}

TEST_F(DeclaredOfRanks, WeightsThatStayEqualMakeItANotice) {
  for (const std::int32_t rank : {0, 1, 2}) declare(rank, "weight_decay", 0.5);
  declare(2, "weight_decay", 0.0);
  step({5, 5, 5});
  ASSERT_EQ(found().size(), 1U);
  EXPECT_FALSE(found().front().certain);
}

TEST_F(DeclaredOfRanks, OfTwoRanksEitherMayBeWrongAndBothValuesAreSaid) {
  for (const std::int32_t rank : {0, 1}) {
    declare(rank, "lr", rank == 0 ? 0.5 : 0.25);
    declare(rank, "eps", rank == 0 ? 1.0 : 2.0);
  }
  step({5, 6});
  ASSERT_EQ(found().size(), 1U);
  EXPECT_TRUE(found().front().is_one_of_ranks);
  EXPECT_EQ(found().front().ranks, (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(found().front().text,
            "eps of group 0 differs between ranks: 1 on rank 0, 2 on rank 1; "
            "lr of group 0 differs between ranks: 0.25 on rank 1, 0.5 on rank 0");
}

TEST_F(DeclaredOfRanks, WhatRanksHoldOfTheirOwnMayHaveOtherValues) {
  declare(0, "lr", 0.5);
  declare(1, "lr", 0.25);
  step({5, 6}, false);  // stages of a pipeline, shards
  EXPECT_TRUE(found().empty());
}

TEST_F(DeclaredOfRanks, GroupsAreComparedByTheirTensorsNotByTheirNumbers) {
  groups = {0, 1};
  for (const std::int32_t rank : {0, 1}) {
    declare(rank, "lr", rank == 0 ? 0.5 : 0.25, 0);
    declare(rank, "lr", rank == 0 ? 0.25 : 0.5, 1);
  }
  step({5, 5});
  EXPECT_TRUE(found().empty());
}

TEST_F(DeclaredOfRanks, AnEndThatIsMissingOnARankIsNoDifference) {
  declare(0, "lr", 0.5);
  step({5, 5});
  declare(1, "betas.0", 0.9);
  step({5, 5});
  EXPECT_TRUE(found().empty());
}

}  // namespace
}  // namespace trainmon::detect
