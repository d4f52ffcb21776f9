// Steps with the gradients of the step before, from rows written by hand.
#include "detect/stale_gradients.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "detect/engine.h"

namespace trainmon::detect {
namespace {

// Two ranks, one optimizer over two tensors.
class Stale : public ::testing::Test {
 protected:
  struct Step {
    bool has_new_gradients = true;
    bool moves = true;
    bool has_input = true;
    bool has_unreduced = false;
    double size = 1.0;  // of the gradients
  };

  void step(const Step& how, int times = 1) {
    for (; times > 0; --times) take(how);
  }
  const std::vector<Finding>& found() const { return engine.findings().all(); }

  const std::vector<Tensor> tensors = {{"a", 0, 0}, {"b", 0, 0}};
  Engine engine{tensors, {0, 1}};

 private:
  void take(const Step& how) {
    StepEvidence evidence(0, step_);
    gradient_ += how.has_new_gradients ? 1 : 0;
    const std::uint64_t before = weight_;
    weight_ += how.moves ? 1 : 0;
    for (std::int32_t rank = 0; rank < 2; ++rank) {
      const auto add = [&](std::uint32_t tensor, Quantity quantity, std::uint64_t bits) {
        Observation row;
        row.tensor = tensor;
        row.quantity = quantity;
        row.rank = rank;
        row.digest = 1000 * bits + tensor;
        row.count = 10.0;
        row.sum_sq = row.absmax = quantity == Quantity::grad_reduced ? how.size : 1.0;
        row.seq = ++seq_;
        evidence.add(row);
      };
      if (how.has_input) {
        Input input;
        input.rank = rank;
        input.element = "input.0";
        input.fingerprint = ++seq_;
        evidence.add(std::move(input));
      }
      for (std::uint32_t tensor = 0; tensor < 2; ++tensor) {
        add(tensor, Quantity::weight_before, before);
        if (how.has_unreduced) add(tensor, Quantity::grad_unreduced, gradient_);
        add(tensor, Quantity::grad_reduced, gradient_);
        add(tensor, Quantity::weight_after, weight_);
      }
    }
    engine.take(std::move(evidence));
    ++step_;
  }

  std::int64_t step_ = 0;
  std::uint64_t gradient_ = 100, weight_ = 1, seq_ = 1;
};

TEST_F(Stale, ASecondStepOnOneBackwardIsNoticedOnce) {
  step({}, 3);
  for (int i = 0; i < 4; ++i) {
    step({.has_new_gradients = false, .has_input = false});
    step({});
  }
  ASSERT_EQ(found().size(), 1U);
  EXPECT_EQ(found()[0].step, 3);
  EXPECT_EQ(found()[0].check, Check::reduce);
  EXPECT_EQ(found()[0].stage, Stage::grad_reduced);
  EXPECT_EQ(found()[0].ranks, (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(found()[0].tensors, (std::vector<std::uint32_t>{0, 1}));
  EXPECT_FALSE(found()[0].certain);
  EXPECT_NE(found()[0].text.find("the model was not called between"), std::string::npos);
}

TEST_F(Stale, SoAreGradientsThatABackwardLeaves) {
  step({}, 3);
  step({.has_new_gradients = false});
  ASSERT_EQ(found().size(), 1U);
  EXPECT_NE(found()[0].text.find("though the model was called between"), std::string::npos);
}

TEST_F(Stale, EqualGradientsThatMeanNothingAreNot) {
  step({});
  step({.has_new_gradients = false}, 5);  // they do not depend on the weights
  step({.moves = false});
  step({.has_new_gradients = false});  // nor did the weights move
  step({.size = 0.0});
  step({.has_new_gradients = false, .size = 0.0});
  EXPECT_TRUE(found().empty());
}

}  // namespace
}  // namespace trainmon::detect
