// Recomputed outputs of modules beside those of the forward, from rows written by hand.
#include "detect/recomputed.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "detect/engine.h"
#include "detect/parameters.h"
#include "model/kinds.h"

namespace trainmon::detect {
namespace {

// Two ranks with two modules, one of which each step recomputes.
class RecomputedOutputs : public ::testing::Test {
 protected:
  // Whether the backward has other values, on rank 1 alone.
  void step(bool is_other, int times = 1) {
    for (; times > 0; --times) {
      StepEvidence evidence(0, step_);
      for (std::int32_t rank = 0; rank < 2; ++rank) {
        const auto tensor = static_cast<std::uint32_t>(step_ % 2);
        const std::uint64_t bits = 10 * static_cast<std::uint64_t>(step_) + tensor;
        const auto add = [&](std::uint32_t of, ModuleOutput::Of how, std::uint64_t digest) {
          ModuleOutput one;
          one.rank = rank;
          one.tensor = of;
          one.of = how;
          one.digest = digest;
          evidence.add(one);
        };
        add(0, ModuleOutput::Of::forward, bits - tensor);
        add(1, ModuleOutput::Of::forward, bits - tensor + 1);
        if (is_called_twice) add(tensor, ModuleOutput::Of::forward, bits + 5);
        const bool is_wrong = is_other && rank == 1;
        add(tensor, ModuleOutput::Of::recomputed, bits + (is_wrong ? 7 : 0));
      }
      engine.take(std::move(evidence));
      ++step_;
    }
  }
  const std::vector<Finding>& found() const { return engine.findings().all(); }

  const std::vector<Tensor> tensors = {{"a", 0, 0, "output"}, {"b", 0, 0, "output"}};
  Engine engine{tensors, {0, 1}};
  bool is_called_twice = false;

 private:
  std::int64_t step_ = 0;
};

TEST_F(RecomputedOutputs, ThatBecomeOthersAreNoticedOnceWithRankStepAndModules) {
  step(false, 40);
  step(true, 20);
  ASSERT_EQ(found().size(), 1u);
  const Finding& one = found()[0];
  EXPECT_EQ(one.check, Check::recompute);
  EXPECT_EQ(one.step, 40);
  EXPECT_EQ(one.stage, Stage::grad_unreduced);
  EXPECT_EQ(one.ranks, (std::vector<std::int32_t>{1}));
  EXPECT_EQ(one.tensors, (std::vector<std::uint32_t>{0, 1}));
  EXPECT_FALSE(one.certain);
  EXPECT_EQ(engine.findings().count_of(Check::recompute), 120);
}

TEST_F(RecomputedOutputs, ThatAreOthersFromTheStartAreNotNoticed) {
  step(true, 80);
  EXPECT_TRUE(found().empty());
}

TEST_F(RecomputedOutputs, AFewByThemselvesAreNotNoticed) {
  step(false, 40);
  for (int i = 0; i < 6; ++i) {
    step(true, 2);
    step(false, 20);
  }
  EXPECT_TRUE(found().empty());
}

TEST_F(RecomputedOutputs, OfAModuleThatIsCalledTwiceAreNotCompared) {
  is_called_twice = true;
  step(false, 40);
  step(true, 20);
  EXPECT_TRUE(found().empty());
  EXPECT_EQ(engine.findings().count_of(Check::recompute), 0);
}

Series output_of(std::string_view kind, const std::string& element) {
  Series series;
  series.kind = kind;
  series.name = "a";
  series.element = element;
  return series;
}

TEST(RecomputedSeries, MakeThoseOfTheForwardOfUse) {
  Parameters parameters;
  RowState state;
  state.count = 4;
  state.min = state.max = 1.0;
  parameters.add(output_of(kind::kActv, "input.0"));
  parameters.add(output_of(kind::kActv, "output"));
  EXPECT_FALSE(parameters.has_use(0) || parameters.has_use(1));
  EXPECT_FALSE(parameters.output(1, state));
  parameters.add(output_of(kind::kActvRecomputed, "output"));
  parameters.add(output_of(kind::kActv, "output"));  // in another dtype
  for (const SeriesId series : {1u, 2u, 3u}) {
    const auto one = parameters.output(series, state);
    ASSERT_TRUE(one && parameters.has_use(series)) << series;
    EXPECT_EQ(one->of == ModuleOutput::Of::recomputed, series == 2);
    EXPECT_EQ(tensor_text(parameters.tensors()[one->tensor]), "a output");
    EXPECT_EQ(one->digest, parameters.output(1, state)->digest);
  }
  EXPECT_FALSE(parameters.has_use(0));
  state.sum = 1.0;
  const std::uint64_t other = parameters.output(1, state)->digest;
  state.sum = 2.0;
  EXPECT_NE(parameters.output(2, state)->digest, other);
}

}  // namespace
}  // namespace trainmon::detect
