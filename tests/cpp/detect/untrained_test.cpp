// Models that are not trained any more, from rows written by hand.
#include "detect/untrained.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "detect/engine.h"

namespace trainmon::detect {
namespace {

// One rank; two weights that a step moves.
class UntrainedModel : public ::testing::Test {
 protected:
  // One finding, of forwards.
  void expect_noticed(std::int64_t step, const char* words) {
    ASSERT_EQ(found().size(), 1U);
    EXPECT_EQ(found()[0].step, step);
    EXPECT_EQ(found()[0].stage, Stage::forward);
    EXPECT_FALSE(found()[0].certain);
    EXPECT_NE(found()[0].text.find(words), std::string::npos);
  }

  struct Step {
    bool has_input = true;
    bool is_evaluated = false;
    bool is_evaluated_inside = false;
    bool moves = true;
    bool has_updates = true;
    bool has_gradients = true;
    bool has_both_gradients = true;
    double rate = 0.5;
  };
  void SetUp() override { engine.know_formula(0, 0); }

  void step(const Step& how, int times = 1) {
    for (; times > 0; --times) take(how);
  }
  void announce_edit() { engine.announce_edit(0, 0, seq_); }
  std::vector<Finding> found() const { return engine.findings().all(); }

  std::vector<Tensor> tensors = {{"a", 0, 0}, {"b", 0, 0}};
  Engine engine{tensors, {0}};

 private:
  void take(const Step& how) {
    StepEvidence evidence(0, step_);
    if (how.is_evaluated) engine.tell_evaluation(0, 0, 0);
    if (how.is_evaluated_inside) engine.tell_evaluation(0, 0, -1);
    engine.declare(0, 0, 0, 0, "lr", how.rate);
    if (how.has_input) {
      Input input;
      input.element = "input.0";
      input.fingerprint = 1000 + static_cast<std::uint64_t>(step_);
      evidence.add(std::move(input));
    }
    const std::uint64_t before = weight_;
    if (how.moves) ++weight_;
    for (std::uint32_t tensor = 0; tensor < tensors.size(); ++tensor) {
      const auto add = [&](Quantity quantity, std::uint64_t digest) {
        Observation row;
        row.tensor = tensor;
        row.quantity = quantity;
        row.digest = digest + 100 * tensor;
        row.count = 10.0;
        row.sum_sq = row.absmax = static_cast<double>(digest);
        row.group = quantity == Quantity::update ? 0 : -1;
        row.seq = seq_++;
        evidence.add(row);
      };
      add(Quantity::weight_before, before);
      if (tensor == 0 && !how.has_both_gradients) continue;
      if (how.has_gradients) add(Quantity::grad_reduced, 5000 + static_cast<std::uint64_t>(step_));
      add(Quantity::weight_after, weight_);
      if (how.has_updates) add(Quantity::update, 7000 + static_cast<std::uint64_t>(step_));
    }
    engine.take(std::move(evidence));
    ++step_;
  }

  std::int64_t step_ = 0;
  std::uint64_t weight_ = 1, seq_ = 1;
};

TEST_F(UntrainedModel, AModelThatStaysInEvaluationIsNoticedOnce) {
  step({}, 4);
  step({.has_input = false, .is_evaluated = true}, 6);
  expect_noticed(4, "in evaluation mode from here on");
}

TEST_F(UntrainedModel, SoIsOneInsideItsWrapper) {
  step({}, 4);
  step({.is_evaluated_inside = true}, 6);
  expect_noticed(4, "in evaluation mode from here on");
}

TEST_F(UntrainedModel, WithoutAWordOfItBothReasonsAreNamed) {
  step({}, 8);
  step({.has_input = false}, 3);
  expect_noticed(8, "or it is called past");
}

TEST_F(UntrainedModel, OtherStepsWithoutInputsAreNot) {
  step({.has_input = false, .is_evaluated = true}, 10);  // from the start on
  step({.is_evaluated_inside = true}, 10);
  step({.has_input = true, .is_evaluated = true}, 10);  // a validation before each step
  step({.has_input = false, .is_evaluated = true}, 2);
  for (int i = 0; i < 10; ++i) {  // recorded now and then
    step({}, 2);
    step({.has_input = false}, 4);
  }
  step({}, 10);
  step({.has_input = false, .has_updates = false, .has_gradients = false}, 5);
  EXPECT_TRUE(found().empty());
}

struct TwoOptimizers : UntrainedModel {
  TwoOptimizers() { tensors[1].optimizer = 1; }
};

// Inputs come with the steps of the first: those of the second alone have none.
TEST_F(TwoOptimizers, StepsOfOneThatFollowOneWithInputsAreNot) {
  step({}, 12);
  step({.has_both_gradients = false});
  step({.has_input = false, .has_both_gradients = false}, 10);
  EXPECT_TRUE(found().empty());
}

TEST_F(UntrainedModel, WeightsThatNoOptimizerStepsAnyMoreAreNoticed) {
  step({}, 5);
  step({.moves = false, .has_updates = false}, 6);
  ASSERT_EQ(found().size(), 1U);
  EXPECT_EQ(found()[0].step, 5);
  EXPECT_EQ(found()[0].stage, Stage::update);
  EXPECT_EQ(found()[0].tensors, (std::vector<std::uint32_t>{0, 1}));
  EXPECT_FALSE(found()[0].certain);
}

TEST_F(UntrainedModel, WeightsThatMoveOrHaveNoGradientAreNot) {
  step({.moves = false, .has_updates = false}, 5);  // never stepped
  step({}, 5);
  step({.moves = false, .has_updates = false}, 2);
  step({}, 2);
  step({.has_updates = false}, 5);
  step({.moves = false, .has_updates = false, .has_gradients = false}, 5);
  for (const Finding& one : found()) EXPECT_NE(one.stage, Stage::update) << one.text;
}

TEST_F(UntrainedModel, ARateThatHasBecomeZeroIsNoticed) {
  step({.moves = false, .rate = 0.0}, 5);  // a warm-up
  step({}, 5);
  step({.moves = false, .rate = 0.0}, 2);
  step({.rate = 0.25}, 2);
  EXPECT_TRUE(found().empty());
  step({.moves = false, .rate = 0.0}, 6);
  ASSERT_EQ(found().size(), 1U);
  EXPECT_EQ(found()[0].step, 14);
  EXPECT_EQ(found()[0].check, Check::config);
  EXPECT_FALSE(found()[0].certain);
  EXPECT_NE(found()[0].text.find("lr of group 0 is 0 from here on, after 0.25"), std::string::npos);
}

TEST_F(UntrainedModel, ARateOfZeroThatMovesWeightsIsNone) {
  step({}, 5);
  step({.rate = 0.0}, 6);
  step({.moves = false, .has_updates = false, .has_gradients = false, .rate = 0.0}, 6);
  for (const Finding& one : found()) EXPECT_NE(one.check, Check::config) << one.text;
}

TEST_F(UntrainedModel, GradientsThatEndAltogetherAreNoticedOnce) {
  step({}, 8);
  step({.moves = false, .has_updates = false, .has_gradients = false}, 6);
  ASSERT_EQ(found().size(), 1U);
  EXPECT_EQ(found()[0].step, 8);
  EXPECT_EQ(found()[0].check, Check::present);
  EXPECT_EQ(found()[0].stage, Stage::grad_reduced);
  EXPECT_FALSE(found()[0].certain);
  EXPECT_NE(found()[0].text.find("no parameter has a gradient any more"), std::string::npos);
}

TEST_F(UntrainedModel, StepsWithoutGradientsThatMeanNothingAreNot) {
  const Step without = {.moves = false, .has_updates = false, .has_gradients = false};
  step(without, 5);  // before the first gradient
  step({}, 7);
  step(without, 5);  // too early to tell
  step({}, 9);
  step(without, 2);
  step({}, 9);
  step({.has_updates = false, .has_gradients = false}, 6);  // rows were switched off
  step({}, 9);
  announce_edit();  // frozen
  step(without, 6);
  EXPECT_TRUE(found().empty());
}

}  // namespace
}  // namespace trainmon::detect
