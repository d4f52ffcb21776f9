// Optimizers of their own that move their weights another distance than before, from rows written
// by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "detect/engine.h"

namespace trainmon::detect {
namespace {

class StepSizesOfOwn : public ::testing::Test {
 protected:
  using OfStep = std::function<double(std::int64_t)>;
  // By step: how far the weights move by a rate of 1, the rate, and the norm of the gradients.
  void steps(std::int64_t count, const OfStep& distance, const OfStep& rate,
             const OfStep& gradient) {
    for (std::int64_t step = 0; step < count; ++step) {
      StepEvidence evidence(0, step);
      for (const std::int32_t rank : {0, 1}) {
        engine.declare(0, rank, 0, 0, "lr", rate(step));
        for (std::uint32_t tensor = 0; tensor < tensors.size(); ++tensor) {
          Observation row;
          row.tensor = tensor;
          row.rank = rank;
          row.count = 10.0;
          row.quantity = Quantity::grad_reduced;
          row.sum_sq = gradient(step) * gradient(step);
          row.absmax = 1.0;
          row.digest = static_cast<std::uint64_t>(step);
          evidence.add(row);
          row.sum_sq = 1.0;
          for (const Quantity quantity : {Quantity::weight_before, Quantity::weight_after}) {
            row.quantity = quantity;
            if (quantity == Quantity::weight_after) {
              const double moved = rate(step) * distance(step) * noise();
              weights[rank][tensor] += static_cast<float>(moved);
            }
            row.sketch.assign(8, weights[rank][tensor]);
            row.digest = ++digest;
            evidence.add(row);
          }
        }
      }
      engine.take(std::move(evidence));
    }
  }
  std::vector<Finding> found() const {
    std::vector<Finding> all = engine.findings().all();
    std::erase_if(all, [](const Finding& one) {
      return one.text.find("moves the weights") == std::string::npos;
    });
    return all;
  }
  static OfStep falls_at(std::int64_t from, double factor) {
    return [=](std::int64_t step) { return step < from ? 1.0 : factor; };
  }
  static double one(std::int64_t) { return 1.0; }
  static double slow(std::int64_t) { return 1e-3; }

  const std::vector<Tensor> tensors = {{"a", 0, 0}, {"b", 0, 0}};
  Engine engine{tensors, {0, 1}};

 private:
  double noise() { return 1.0 + 0.05 * normal(random); }
  std::mt19937 random{1};
  std::normal_distribution<double> normal;
  float weights[2][2] = {{1.0F, 2.0F}, {1.0F, 2.0F}};
  std::uint64_t digest = 0;
};

TEST_F(StepSizesOfOwn, AreSaidOnceWhereTheyFall) {
  steps(160, falls_at(110, 0.5), slow, one);
  const std::vector<Finding> all = found();
  ASSERT_FALSE(all.empty());
  for (const Finding& notice : all) {
    EXPECT_EQ(notice.step, 110);
    EXPECT_FALSE(notice.certain);
    EXPECT_EQ(notice.check, Check::update);
    EXPECT_EQ(notice.tensors, (std::vector<std::uint32_t>{0, 1}));
    EXPECT_NE(notice.text.find("moves the weights 0.5 times"), std::string::npos) << notice.text;
  }
}

TEST_F(StepSizesOfOwn, FollowTheLearningRate) {
  steps(
      160, one, [](std::int64_t step) { return step < 110 ? 1e-3 : 1e-4; }, one);
  EXPECT_TRUE(found().empty());
}

TEST_F(StepSizesOfOwn, FollowTheGradient) {
  steps(160, falls_at(110, 0.5), slow, falls_at(110, 0.5));
  EXPECT_TRUE(found().empty());
}

TEST_F(StepSizesOfOwn, MayFallSlowly) {
  steps(
      300, [](std::int64_t step) { return std::exp(-0.01 * static_cast<double>(step)); }, slow,
      one);
  EXPECT_TRUE(found().empty());
}

}  // namespace
}  // namespace trainmon::detect
