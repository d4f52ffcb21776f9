// A rank's own steps as its batches come: an alert where a check fails, and none where something
// that a check needs is missing, late or announced.
#include "detect/step_checks.h"

#include <gtest/gtest.h>

#include "model/own_scalars.h"
#include "records.h"

namespace trainmon::detect {
namespace {

// Of two elements, for a program may clamp one number.
RowState all_equal(double value) {
  RowState state;
  state.count = 2;
  state.mean = state.min = state.max = value;
  state.sum = 2.0 * value;
  state.sum_sq = 2.0 * value * value;
  state.absmax = value;
  return state;
}

class StepChecksTest : public ::testing::Test {
 protected:
  StepChecksTest() {
    for (const std::string_view kind : {kind::kParamOrigin, kind::kParamUpdated}) {
      Series series;
      series.kind = kind;
      series.name = "fc.weight";
      table_.add(series);
    }
  }

  // One step of weights that are `before`, then `after`; not handed in yet.
  RecordBatch step(double before, double after) {
    RecordBatch batch;
    batch.number = ++number_;
    batch.moment = Moment::after_step;
    batch.rows.push_back({{0, 0, window_, 0, 0, seq_++}, all_equal(before)});
    batch.rows.push_back({{1, 0, window_, 0, 0, seq_++}, all_equal(after)});
    Outcome outcome;
    outcome.window = outcome.step = window_++;
    outcome.fate = Fate::taken;
    batch.outcomes.push_back(outcome);
    return batch;
  }
  std::vector<Alert> look(const RecordBatch& batch) {
    std::vector<Alert> alerts;
    rule_.look(batch, table_, alerts);
    return alerts;
  }
  std::vector<Alert> stop() {
    RecordBatch batch;
    batch.number = ++number_;
    batch.moment = Moment::stop;
    return look(batch);
  }
  // Steps in which each check holds.
  void train(int steps) {
    for (int i = 0; i < steps; ++i) EXPECT_TRUE(look(step(i, i + 1)).empty()) << i;
  }

  ListedSeries table_;
  StepChecks rule_{3};
  std::uint64_t number_ = 0, seq_ = 0;
  std::int64_t window_ = 0;
};

TEST_F(StepChecksTest, AWeightThatChangedBetweenTwoStepsIsAnAlertOnceTheStepIsWhole) {
  train(5);
  EXPECT_TRUE(look(step(7, 8)).empty());  // rows of it may still come
  const std::vector<Alert> alerts = look(step(8, 9));
  ASSERT_EQ(alerts.size(), 1u);
  EXPECT_EQ(alerts[0].rule, "gap");
  EXPECT_EQ(alerts[0].key.series, 0u);
  EXPECT_EQ(alerts[0].key.window, 5);
  EXPECT_NE(alerts[0].message.find("fc.weight"), std::string::npos) << alerts[0].message;
  EXPECT_TRUE(stop().empty());
}

// Of ranks that nothing relates a program may average weights, which `diagnose` can see.
TEST_F(StepChecksTest, WhereThereAreOtherRanksSuchAWeightIsLeftToThoseWhoReadAll) {
  const auto knows_none = [](std::int32_t) { return false; };
  StepChecks of_several(3, knows_none, false);
  std::vector<Alert> alerts;
  for (int i = 0; i < 5; ++i) of_several.look(step(i, i + 1), table_, alerts);
  for (int i = 7; i < 9; ++i) of_several.look(step(i, i + 1), table_, alerts);
  EXPECT_TRUE(alerts.empty());
}

TEST_F(StepChecksTest, TheLastStepIsCheckedAtTheStop) {
  train(5);
  EXPECT_TRUE(look(step(7, 8)).empty());
  EXPECT_EQ(stop().size(), 1u);
}

TEST_F(StepChecksTest, AnnouncedEditsAndLostRowsAreNoAlerts) {
  train(5);
  RecordBatch edited;
  edited.number = ++number_;
  edited.scalars.push_back({std::string(kEditScalar), window_, seq_++, 1.0});
  EXPECT_TRUE(look(edited).empty());
  EXPECT_TRUE(look(step(7, 8)).empty());
  EXPECT_TRUE(look(step(8, 9)).empty());
  RecordBatch lossy = step(12, 13);
  lossy.gaps.push_back({"queue full", 3, 0, 1});
  EXPECT_TRUE(look(lossy).empty());
  EXPECT_TRUE(look(step(13, 14)).empty());
  EXPECT_TRUE(stop().empty());
}

TEST_F(StepChecksTest, AnEditInEveryStepHidesNoChangeOfAnother) {
  train(5);
  for (int i = 0; i < 1000; ++i) {  // an average is swapped in and out, say
    RecordBatch edited;
    edited.number = ++number_;
    edited.scalars.push_back({std::string(kEditScalar), window_, seq_++, 1.0});
    EXPECT_TRUE(look(edited).empty());
    EXPECT_TRUE(look(step(10 + 3 * i, 11 + 3 * i)).empty()) << i;
  }
  EXPECT_TRUE(look(step(0, 1)).empty());
  EXPECT_EQ(look(step(1, 2)).size(), 1u);
}

TEST_F(StepChecksTest, ABatchThatIsPassedOverIsWaitedFor) {
  train(5);
  const RecordBatch late = step(5, 6);
  EXPECT_TRUE(look(step(6, 7)).empty());
  EXPECT_TRUE(look(step(7, 8)).empty());
  EXPECT_TRUE(look(late).empty());
  EXPECT_TRUE(look(step(9, 10)).empty());
  EXPECT_EQ(stop().size(), 1u);  // 8 -> 9
}

TEST_F(StepChecksTest, ManyStepsThatFailAreFewAlerts) {
  train(5);
  std::size_t alerts = 0;
  std::int64_t count = 0;
  // In each step it would be a habit.
  for (int i = 0, weight = 5; i < 3000; ++i, ++weight) {
    weight += i % 3 == 0 ? 2 : 0;
    for (const Alert& one : look(step(weight, weight + 1))) {
      ++alerts;
      count = one.count;
      EXPECT_EQ(one.key.window, 5);
    }
  }
  EXPECT_EQ(alerts, 10u);
  EXPECT_EQ(count, 512);
}

TEST_F(StepChecksTest, WindowsWithoutAnOutcomeAreFewInMemoryAndOfNoCheck) {
  train(5);
  for (int i = 0; i < 1000; ++i) {
    RecordBatch open = step(10 + 3 * i, 11 + 3 * i);
    open.outcomes.clear();
    EXPECT_TRUE(look(open).empty());
  }
  EXPECT_TRUE(stop().empty());
}

}  // namespace
}  // namespace trainmon::detect
