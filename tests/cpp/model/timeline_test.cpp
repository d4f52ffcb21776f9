// The step of a window, for outcomes of every size: a damaged log may hold any number.
#include "model/timeline.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace trainmon {
namespace {

constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
constexpr auto kLeast = std::numeric_limits<std::int64_t>::min();

Timeline with(const Outcome& outcome, std::vector<std::int64_t> start_steps = {}) {
  Timeline timeline(std::move(start_steps));
  RecordBatch batch;
  batch.outcomes.push_back(outcome);
  timeline.add(batch);
  return timeline;
}

TEST(Timeline, WindowsAfterAnOutcomeCountFromItsStep) {
  const Timeline timeline = with({0, 5, 70, 0, Fate::taken});
  EXPECT_EQ(timeline.at(0, 5).step, 70);
  EXPECT_EQ(timeline.at(0, 6).step, 71);
  EXPECT_EQ(timeline.at(0, 9).step, 74);
  EXPECT_EQ(timeline.at(0, 4).step, 4) << "before any outcome: from the start step";
  EXPECT_EQ(with({1, 0, 0}, {100}).at(0, 4).step, 104);
}

// The beginning of the log was deleted, and a loss scaler had skipped 200 steps in it.
TEST(Timeline, NoWindowIsBeyondTheFirstOutcomeThatIsThere) {
  const Timeline timeline = with({0, 1000, 800, 0, Fate::taken});
  EXPECT_EQ(timeline.at(0, 10).step, 10);
  EXPECT_EQ(timeline.at(0, 999).step, 800);
}

TEST(Timeline, AWindowThatWasNotTakenIsTriedAgain) {
  const Timeline timeline = with({0, 5, 70, 2, Fate::skipped});
  EXPECT_EQ(timeline.at(0, 6).step, 70);
  EXPECT_EQ(timeline.at(0, 6).attempt, 3);
  EXPECT_EQ(timeline.at(0, 7).step, 71);
  EXPECT_EQ(timeline.at(0, 7).attempt, 0);
}

// Seen under UndefinedBehaviorSanitizer: signed overflow.
TEST(Timeline, NumbersOfEverySizeWrap) {
  EXPECT_EQ(with({0, 0, kMost, 0, Fate::taken}).at(0, 1).step, kLeast);
  EXPECT_EQ(with({0, kLeast, 0, 0, Fate::taken}).at(0, kMost).step, -1);
  EXPECT_EQ(with({1, 0, 0}, {kMost}).at(0, 1).step, kLeast);
  const Outcome last{0, 0, 1, std::numeric_limits<std::int32_t>::max(), Fate::skipped};
  EXPECT_EQ(with(last).at(0, 1).attempt, std::numeric_limits<std::int32_t>::min());
}

}  // namespace
}  // namespace trainmon
