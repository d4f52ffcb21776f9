// Norms that people log, against gradients of which the norm is known here.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "detect/engine.h"

namespace trainmon::detect {
namespace {

// A gradient of one rank of which only the sum of squares matters.
struct Gradient {
  std::uint32_t tensor = 0;
  std::int32_t rank = 0;
  double sum_sq = 0.0;
  bool is_replicated = true;
};

class Norms : public ::testing::Test {
 protected:
  explicit Norms(std::vector<std::int32_t> ranks = {0}) : engine(tensors, std::move(ranks)) {}

  void take(const std::vector<Gradient>& gradients, double logged, DType dtype = DType::float32,
            std::int32_t rank = 0) {
    StepEvidence evidence(0, step_++);
    for (const Gradient& one : gradients) {
      Observation row;
      row.tensor = one.tensor;
      row.quantity = Quantity::grad_reduced;
      row.rank = one.rank;
      row.dtype = dtype;
      row.is_replicated = one.is_replicated;
      row.count = 10.0;
      row.sum_sq = one.sum_sq;
      row.absmax = 1.0;
      row.digest = static_cast<std::uint64_t>(one.sum_sq * 4096.0) + one.tensor;
      evidence.add(row);
    }
    engine.log_norm(0, rank, {"grad_norm", logged});
    engine.take(std::move(evidence));
  }
  std::vector<Finding> found() const { return engine.findings().all(); }

  std::vector<Tensor> tensors = {{"a", 0, 0}, {"b", 0, 0}, {"c", 0, 1}};
  Engine engine;

 private:
  std::int64_t step_ = 0;
};
class NormsOfTwo : public Norms {
 protected:
  NormsOfTwo() : Norms({0, 1}) {}
};

TEST_F(Norms, TheirOwnNormIsSoundAndAnotherOneIsNoticedOnce) {
  for (int i = 0; i < 3; ++i) take({{0, 0, 9.0}, {1, 0, 16.0}}, 5.0 + 1e-6);
  EXPECT_EQ(engine.findings().count_of(Check::norm), 3);
  EXPECT_TRUE(found().empty());
  for (int i = 0; i < 3; ++i) take({{0, 0, 9.0}, {1, 0, 16.0}}, 4.9);
  ASSERT_EQ(found().size(), 1U);
  EXPECT_EQ(found()[0].check, Check::norm);
  EXPECT_EQ(found()[0].step, 3);
  EXPECT_EQ(found()[0].ranks, std::vector<std::int32_t>{0});
  EXPECT_FALSE(found()[0].certain);
  EXPECT_NEAR(found()[0].value, 0.1, 1e-9);
  EXPECT_NE(found()[0].text.find("logged grad_norm is 4.9"), std::string::npos) << found()[0].text;
}

TEST_F(Norms, ClippingToOneLimitIsSound) {
  for (const double before : {5.0, 2.0, 0.5, 7.0, 0.9}) {
    const double after = std::min(before, 1.0);
    take({{0, 0, 0.25 * after * after}, {1, 0, 0.75 * after * after}}, before);
  }
  EXPECT_TRUE(found().empty());
}

TEST_F(Norms, WeightsThatAreCountedTwiceAreNotClipping) {
  for (const double one : {9.0, 4.0, 1.0})
    take({{0, 0, one}, {1, 0, 16.0}}, std::sqrt(2.0 * one + 16.0));
  ASSERT_EQ(found().size(), 1U);
  EXPECT_EQ(found()[0].step, 1);
  EXPECT_NE(found()[0].text.find("clipping"), std::string::npos);
}

TEST_F(Norms, TheNormOfOneOptimizerIsSound) {
  take({{0, 0, 9.0}, {1, 0, 16.0}, {2, 0, 100.0}}, 5.0);
  take({{0, 0, 9.0}, {1, 0, 16.0}, {2, 0, 100.0}}, 10.0);
  take({{0, 0, 9.0}, {1, 0, 16.0}, {2, 0, 75.0}}, 10.0);
  EXPECT_TRUE(found().empty());
}

TEST_F(Norms, LowPrecisionHasWhatItsRoundingExplains) {
  take({{0, 0, 9.0}, {1, 0, 16.0}}, 4.95, DType::bfloat16);
  EXPECT_TRUE(found().empty());
  take({{0, 0, 9.0}, {1, 0, 16.0}}, 4.9, DType::bfloat16);
  EXPECT_EQ(found().size(), 1U);
}

TEST_F(Norms, WhatIsNotWholeIsNotChecked) {
  engine.announce_loss(0, 0);
  take({{0, 0, 9.0}}, 1.0);
  EXPECT_EQ(engine.findings().count_of(Check::norm), 0);
}

TEST_F(NormsOfTwo, ShardsOfAllRanksMakeTheNormAndReplicasCountOnce) {
  const std::vector<Gradient> step = {
      {0, 0, 9.0, false}, {0, 1, 7.0, false}, {1, 0, 20.0}, {1, 1, 20.0}};
  take(step, 6.0);
  EXPECT_TRUE(found().empty());
  take(step, std::sqrt(56.0));
  take({{0, 0, 1.0, false}, {0, 1, 7.0, false}, {1, 0, 20.0}, {1, 1, 20.0}}, std::sqrt(48.0));
  EXPECT_EQ(found().size(), 1U);
}

TEST_F(NormsOfTwo, TheSameShardOnTwoRanksCountsOnce) {
  take({{0, 0, 9.0, false}, {0, 1, 9.0, false}, {1, 0, 16.0}, {1, 1, 16.0}}, 5.0);
  EXPECT_EQ(engine.findings().count_of(Check::norm), 1);
  EXPECT_TRUE(found().empty());
}

TEST_F(NormsOfTwo, WithoutTheShardsOfARankNothingIsSaid) {
  take({{0, 0, 9.0, false}, {1, 0, 16.0}, {1, 1, 16.0}}, 1.0);
  EXPECT_EQ(engine.findings().count_of(Check::norm), 0);
}

TEST(NamesOfNorms, AreThoseThatPeopleLog) {
  for (const char* name :
       {"grad_norm", "train/grad_norm", "Grad Norm", "a.gradient-norm", "total_norm"}) {
    EXPECT_TRUE(is_gradient_norm(name)) << name;
  }
  for (const char* name : {"", "norm", "grad_norm_d", "grad_norm/layer1", "loss"}) {
    EXPECT_FALSE(is_gradient_norm(name)) << name;
  }
}

}  // namespace
}  // namespace trainmon::detect
