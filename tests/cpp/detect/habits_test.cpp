// What a training keeps to, and what it did otherwise, from rows written by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "detect/engine.h"

namespace trainmon::detect {
namespace {

// Two ranks, an optimizer over two tensors, and two averages of those that no optimizer has.
class Habits : public ::testing::Test {
 protected:
  using Accum = std::function<std::int32_t(std::int64_t step)>;
  using Size = std::function<double(std::int64_t step)>;

  void steps(std::int64_t count, const Accum& accum, const Size& moved, const Size& rate) {
    for (const std::int64_t end = step_ + count; step_ < end; ++step_) {
      StepEvidence evidence(restart, step_);
      average_ += moved(step_);
      for (std::int32_t rank = 0; rank < 2; ++rank) {
        engine.declare(restart, rank, 0, 0, "lr", rate(step_));
        if (second_rate) engine.declare(restart, rank, 0, 1, "lr", second_rate(step_));
        for (std::uint32_t tensor = 0; tensor < 4; ++tensor) {
          Observation one;
          one.tensor = tensor;
          one.rank = rank;
          one.seq = ++seq_;
          const bool is_average = tensor >= 2;
          one.fingerprint = is_average ? static_cast<std::uint64_t>(100.0 * average_) : one.seq;
          one.quantity = is_average ? Quantity::weight_before : Quantity::grad_reduced;
          one.accum = is_average ? 0 : accum(step_);
          one.sketch.assign(8, static_cast<float>(is_average ? average_ : 1.0));
          one.count = one.sum_sq = 1.0;
          evidence.add(one);
        }
      }
      engine.take(std::move(evidence));
    }
  }
  void expect_one(const std::string& check, std::int64_t step, std::vector<std::uint32_t> tensors,
                  const std::string& text) const {
    ASSERT_EQ(engine.findings().all().size(), 1U);
    const Finding& one = engine.findings().all().front();
    EXPECT_EQ(check_name(one.check), check);
    EXPECT_EQ(one.step, step);
    EXPECT_EQ(one.ranks, (std::vector<std::int32_t>{0, 1}));
    EXPECT_EQ(one.tensors, tensors);
    EXPECT_FALSE(one.certain);
    EXPECT_NE(one.text.find(text), std::string::npos) << one.text;
  }
  void expect_none() const { EXPECT_TRUE(engine.findings().all().empty()); }

  static std::int32_t one_backward(std::int64_t) { return 0; }
  static double slowly(std::int64_t) { return 0.25; }
  static double constant(std::int64_t) { return 0.1; }
  static double cosine(std::int64_t step, std::int64_t length) {
    const double turn = std::numbers::pi * static_cast<double>(step) / static_cast<double>(length);
    return 0.05 * (1.0 + std::cos(turn));
  }

  Size second_rate;  // of group 1, if any
  const std::vector<Tensor> tensors_ = {
      {"a", 0, 0}, {"b", 0, 0}, {"mean a", 1, 0}, {"mean b", 1, 0}};
  Engine engine{tensors_, {0, 1}};
  std::int32_t restart = 0;
  std::int64_t step_ = 0;
  std::uint64_t seq_ = 0;
  double average_ = 0.0;
};

TEST_F(Habits, ThatAreKeptAreNothing) {
  steps(60, one_backward, slowly, [](std::int64_t step) { return cosine(step, 60); });
  expect_none();
}

TEST_F(Habits, OneBackwardMoreInEachStepIsSaidOnce) {
  steps(
      60, [](std::int64_t step) { return step < 30   ? 0
                                         : step < 50 ? 1
                                                     : 2; }, slowly, constant);
  expect_one("reduce", 30, {0, 1},
             "the gradients of 2 backwards from here on, and took those of 1");
}

TEST_F(Habits, AveragesThatEndAreSaidOnce) {
  const auto ends = [](std::int64_t step) { return step < 60 || step > 80 ? 0.25 : 0.0; };
  steps(160, one_backward, ends, constant);
  expect_one("gap", 59, {2, 3}, "do not change any more");
}

TEST_F(Habits, AveragesThatAnotherStartMovesNoMoreAreSaidOnce) {
  const auto ends = [](std::int64_t step) { return step <= 60 ? 0.25 : 0.0; };
  steps(60, one_backward, ends, constant);
  restart = 1;
  steps(60, one_backward, ends, constant);
  expect_one("gap", 60, {2, 3}, "do not change any more");
}

TEST_F(Habits, AveragesThatChangeNowAndThenAreNothing) {
  steps(
      80, one_backward, [](std::int64_t step) { return step % 10 == 0 ? 0.25 : 0.0; }, constant);
  expect_none();
}

TEST_F(Habits, FewerBackwardsAtTheEndOfEachEpochAreNothing) {
  steps(
      100, [](std::int64_t step) { return step % 20 < 19 ? 3 : 1; }, slowly, constant);
  expect_none();
}

TEST_F(Habits, AnotherStartMayAccumulateOtherwise) {
  steps(
      30, [](std::int64_t) { return 3; }, slowly, constant);
  restart = 1;
  steps(
      30, [](std::int64_t) { return 1; }, slowly, constant);
  expect_none();
}

TEST_F(Habits, ACosineThatGoesOnBehindItsEndIsSaidOnce) {
  steps(90, one_backward, slowly, [](std::int64_t step) { return cosine(step, 40); });
  expect_one("config", 41, {}, "the learning rate of group 0 rises again");
}

TEST_F(Habits, AStartThatWarmsUpAgainIsSaidOnce) {
  const auto warm = [](std::int64_t step) { return 0.01 * static_cast<double>(step); };
  steps(40, one_backward, slowly, [&](std::int64_t step) { return step < 10 ? warm(step) : 0.1; });
  restart = 1;
  steps(40, one_backward, slowly,
        [&](std::int64_t step) { return step < 50 ? warm(step - 40) : 0.1; });
  expect_one("config", 40, {}, "but not with its learning rate: that of group 0 was 0.1 and is 0");
}

TEST_F(Habits, AScheduleThatIsSteppedTwiceFromAStartOnIsSaidOnce) {
  const auto line = [](std::int64_t step) { return 0.1 - 0.0005 * static_cast<double>(step); };
  steps(40, one_backward, slowly, line);
  restart = 1;
  steps(40, one_backward, slowly, [&](std::int64_t step) { return line(2 * step - 40); });
  expect_one("config", 40, {}, "changed by -0.0005 in each step, and now it changes by -0.001");
}

TEST_F(Habits, AScheduleThatIsSteppedInEachMicroStepFromAStepOnIsSaidOnce) {
  steps(90, one_backward, slowly,
        [](std::int64_t step) { return cosine(step < 60 ? step : 59 + 4 * (step - 59), 300); });
  expect_one("config", 60, {}, "of group 0 changes 4 times as much in a step from here on");
}

TEST_F(Habits, OneRateWrittenIntoBothGroupsIsSaidOnce) {
  const auto rate = [](std::int64_t step) { return cosine(step, 300); };
  second_rate = [&](std::int64_t step) { return rate(step) * (step < 80 ? 2.0 : 1.0); };
  steps(120, one_backward, slowly, rate);
  expect_one("config", 80, {}, "of group 1 is 1 of that of group 0 from here on, and was 2 of it");
}

TEST_F(Habits, AFactorOfTheFirstGroupThatIsLostNamesThatGroup) {
  second_rate = [](std::int64_t step) { return cosine(step, 300); };
  steps(120, one_backward, slowly,
        [](std::int64_t step) { return cosine(step, 300) * (step < 80 ? 0.5 : 1.0); });
  expect_one("config", 80, {},
             "of group 0 is 1 of that of group 1 from here on, and was 0.5 of it");
}

TEST_F(Habits, AGroupWithItsOwnScheduleIsNothing) {
  second_rate = [](std::int64_t step) { return cosine(step, 400); };
  steps(200, one_backward, slowly, [](std::int64_t step) { return cosine(step, 2000); });
  expect_none();
}

TEST_F(Habits, AGroupThatIsFrozenForAWhileIsNothing) {
  second_rate = [](std::int64_t step) { return step < 80 || step >= 120 ? 0.1 : 0.0; };
  steps(200, one_backward, slowly, [](std::int64_t) { return 0.2; });
  expect_none();
}

TEST_F(Habits, AScheduleOfPiecesIsNothing) {
  const auto in_pieces = [](std::int64_t step) {
    const auto at = static_cast<double>(step);
    if (step < 20) return 0.005 * at;                 // warm-up
    if (step < 40) return 0.1;                        // constant
    if (step < 70) return 0.1 - 0.002 * (at - 40.0);  // a line
    return step < 90 ? 0.01 : 0.001;                  // two stairs
  };
  steps(120, one_backward, slowly, in_pieces);
  expect_none();
}

TEST_F(Habits, AScheduleThatNobodyStepsFromAStartOnIsSaidOnce) {
  steps(40, one_backward, slowly, [](std::int64_t step) { return cosine(step, 200); });
  restart = 1;
  steps(40, one_backward, slowly, [](std::int64_t) { return cosine(40, 200); });
  expect_one("config", 40, {}, "in each step, and now it stays");
}

TEST_F(Habits, AScheduleThatGoesOnInAnotherStartIsNothing) {
  steps(40, one_backward, slowly, [](std::int64_t step) { return cosine(step, 200); });
  restart = 1;
  steps(40, one_backward, slowly, [](std::int64_t step) { return cosine(step, 200); });
  expect_none();
}

TEST_F(Habits, AWarmUpAndWarmRestartsAreNothing) {
  steps(120, one_backward, slowly, [](std::int64_t step) {
    return step < 20 ? 0.1 * static_cast<double>(step + 1) / 20.0 : cosine((step - 20) % 25, 25);
  });
  for (const Finding& one : engine.findings().all()) {
    EXPECT_EQ(one.text.find("rises again"), std::string::npos) << one.text;
  }
}

TEST_F(Habits, RestartsWithALinearWarmUpAreNothing) {
  steps(160, one_backward, slowly, [](std::int64_t step) {
    const std::int64_t place = step % 40;
    return place < 16 ? 0.1 * static_cast<double>(place + 1) / 16.0 : cosine(place - 16, 24);
  });
  expect_none();
}

TEST_F(Habits, AnAverageThatJumpsIsSaidOnce) {
  steps(
      60, one_backward, [](std::int64_t step) { return step == 40 || step == 50 ? 1.0 : 0.25; },
      constant);
  expect_one("gap", 39, {2, 3}, "weights without a gradient");
}

TEST_F(Habits, AnAverageThatIsCopiedNowAndThenIsNothing) {
  steps(
      200, one_backward, [](std::int64_t step) { return step % 10 == 0 ? 2.0 : 0.0; }, constant);
  expect_none();
}

TEST_F(Habits, AnAverageThatIsEditedWithAWordIsNothing) {
  steps(40, one_backward, slowly, constant);
  for (std::int32_t rank = 0; rank < 2; ++rank) engine.announce_edit(0, rank, seq_ + 1);
  steps(
      20, one_backward, [](std::int64_t step) { return step == 40 ? 9.0 : 0.25; }, constant);
  expect_none();
}

// The forwards of so many backwards after the last step, as the record ends.
StepEvidence open_step(std::int32_t restart, std::int64_t step, std::int32_t backwards) {
  StepEvidence evidence(restart, step);
  for (std::int32_t accum = 0; accum < backwards; ++accum) {
    Input one;
    one.accum = accum;
    one.element = "input.0";
    evidence.add(std::move(one));
  }
  return evidence;
}

TEST_F(Habits, AnOptimizerThatStepsNoMoreIsSaid) {
  steps(
      20, [](std::int64_t) { return 1; }, slowly, constant);
  engine.note_open(open_step(0, 20, 15));
  EXPECT_TRUE(engine.findings_at_end().all().empty());  // a record may end like this
  engine.note_open(open_step(0, 20, 16));
  const std::vector<Finding> found = engine.findings_at_end().all();
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(check_name(found[0].check), "update");
  EXPECT_EQ(found[0].step, 20);
  EXPECT_EQ(found[0].ranks, (std::vector<std::int32_t>{0}));
  EXPECT_FALSE(found[0].certain);
  EXPECT_NE(found[0].text.find("16 backwards came after its last step, which had 2"),
            std::string::npos)
      << found[0].text;
}

TEST_F(Habits, BackwardsBeforeTheFirstStepsAreNothing) {
  engine.note_open(open_step(0, 0, 50));
  steps(5, one_backward, slowly, constant);
  engine.note_open(open_step(0, 5, 50));
  EXPECT_TRUE(engine.findings_at_end().all().empty());
  steps(20, one_backward, slowly, constant);
  engine.note_open(open_step(1, 25, 50));  // a start that has made no step yet
  EXPECT_TRUE(engine.findings_at_end().all().empty());
}

}  // namespace
}  // namespace trainmon::detect
