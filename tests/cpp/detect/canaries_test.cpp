// Canaries from rows written by hand: which module, or which backward, is not as ever.
#include "detect/canaries.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "detect/engine.h"
#include "detect/parameters.h"
#include "model/kinds.h"

namespace trainmon::detect {
namespace {

constexpr int kForward = 3;  // tensors 0 to 2; then come gradients 3 to 5, as the backward goes

// Two ranks with three modules and three parameters; what is off is so on rank 1.
class CanaryRows : public ::testing::Test {
 protected:
  void step(std::vector<std::uint32_t> off = {}, double by = 0.01) {
    StepEvidence evidence(0, step_);
    for (std::int32_t rank = 0; rank < 2; ++rank) {
      for (std::uint32_t tensor = 0; tensor < 6; ++tensor) {
        ModuleOutput one;
        one.rank = rank;
        one.tensor = tensor;
        one.of = tensor < kForward ? ModuleOutput::Of::canary : ModuleOutput::Of::canary_gradient;
        one.seq = tensor;
        const bool is_off = rank == 1 && std::ranges::find(off, tensor) != off.end();
        one.digest = is_off ? 7 + static_cast<std::uint64_t>(by * 1e9) : 1;
        one.norm = is_off ? 2.0 * (1.0 + by) : 2.0;
        one.sum = 0.5;
        one.count = 4.0;
        evidence.add(one);
      }
    }
    engine.take(std::move(evidence));
    step_ += every;
  }
  void steps(int times) {
    for (; times > 0; --times) step();
  }
  const std::vector<Finding>& found() const { return engine.findings().all(); }

  const std::vector<Tensor> tensors = {{"a", 0, 0, "output"}, {"b", 0, 0, "output"},
                                       {"c", 0, 0, "output"}, {"c.weight"},
                                       {"b.weight"},          {"a.weight"}};
  Engine engine{tensors, {0, 1}};
  std::int64_t every = 1;

 private:
  std::int64_t step_ = 0;
};

TEST_F(CanaryRows, TheFirstModuleThatIsNotAsEverIsNamedOnce) {
  steps(20);
  for (int i = 0; i < 3; ++i) step({1, 2, 3, 4, 5});
  steps(20);
  step({0});
  ASSERT_EQ(found().size(), 1u);
  const Finding& one = found()[0];
  EXPECT_EQ(one.check, Check::canary);
  EXPECT_EQ(one.step, 20);
  EXPECT_EQ(one.stage, Stage::forward);
  EXPECT_EQ(one.ranks, (std::vector<std::int32_t>{1}));
  EXPECT_EQ(one.tensors, (std::vector<std::uint32_t>{1}));
  EXPECT_FALSE(one.certain);
  EXPECT_NE(one.text.find("and 1 behind it"), std::string::npos) << one.text;
  EXPECT_EQ(engine.findings().count_of(Check::canary), 43 * 12);
}

TEST_F(CanaryRows, WhereTheForwardIsAsEverTheBackwardIsPlacedBetweenTwoParameters) {
  steps(12);
  step({4, 5});
  ASSERT_EQ(found().size(), 1u);
  EXPECT_EQ(found()[0].stage, Stage::grad_unreduced);
  EXPECT_EQ(found()[0].tensors, (std::vector<std::uint32_t>{4}));
  EXPECT_NE(found()[0].text.find("that of c.weight still is"), std::string::npos)
      << found()[0].text;
}

TEST_F(CanaryRows, NothingIsSaidBeforeEightWereTheSame) {
  steps(8);
  step({0});  // the ninth has seven before it that were like their own one before
  EXPECT_TRUE(found().empty());
  steps(9);
  step({0});
  EXPECT_EQ(found().size(), 1u);
}

TEST_F(CanaryRows, WhatIsNeverTheSameSaysNothing) {
  for (int i = 0; i < 60; ++i) step({0, 1, 2, 3, 4, 5}, 0.01 + 0.001 * i);
  EXPECT_TRUE(found().empty());
}

TEST_F(CanaryRows, TheLastBitsMayDifferAndNaNMayNot) {
  steps(20);
  step({0, 1, 2}, 1e-7);
  steps(20);
  EXPECT_TRUE(found().empty());
  step({2}, std::numeric_limits<double>::quiet_NaN());
  ASSERT_EQ(found().size(), 1u);
  EXPECT_EQ(found()[0].tensors, (std::vector<std::uint32_t>{2}));
}

TEST_F(CanaryRows, ThoseThatAreFarApartTellBehindWhichStep) {
  every = 16;
  steps(12);
  step({0});
  ASSERT_EQ(found().size(), 1u);
  EXPECT_EQ(found()[0].step, 192);
  EXPECT_NE(found()[0].text.find("behind step 176"), std::string::npos) << found()[0].text;
}

TEST(CanarySeries, ADtypeThatBecomesAnotherIsNoOtherLine) {
  Parameters parameters;
  Series series;
  series.kind = kind::kCanaryActv;
  series.name = "a";
  series.element = "output";
  parameters.add(series);
  series.dtype = DType::bfloat16;
  parameters.add(series);
  series.kind = kind::kCanaryGrad;
  parameters.add(series);
  RowState state;
  state.count = 1;
  const auto first = parameters.output(0, state), second = parameters.output(1, state),
             gradient = parameters.output(2, state);
  ASSERT_TRUE(first && second && gradient);
  EXPECT_EQ(first->tensor, second->tensor);
  EXPECT_NE(first->tensor, gradient->tensor);
  EXPECT_EQ(first->of, ModuleOutput::Of::canary);
  EXPECT_EQ(gradient->of, ModuleOutput::Of::canary_gradient);
}

}  // namespace
}  // namespace trainmon::detect
