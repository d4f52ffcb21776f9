// The step of a window, for outcomes of every size: a damaged log may hold any number.
#include "model/timeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <random>

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

// Windows in any order, said twice, skipped, with gaps: a map of all outcomes is the oracle.
TEST(Timeline, KnowsEveryOutcomeThatItWasTold) {
  std::mt19937 random(1);
  const auto below = [&](unsigned limit) { return static_cast<int>(random() % limit); };
  for (int round = 0; round < 300; ++round) {
    Timeline timeline;
    std::map<std::int64_t, Outcome> told;
    const int mixed = below(4);  // how often a window is no continuation
    std::int64_t window = -3, step = 10;
    for (int i = 0; i < 60; ++i) {
      window = below(8) < mixed ? below(60) : window + 1;
      step = below(8) < mixed ? below(9) : step + 1;
      Outcome one{0, window, step, 0, Fate::taken};
      if (below(8) < mixed) one.fate = Fate::skipped;
      if (below(16) < mixed) one.loss_scale = 2.0;
      RecordBatch batch;
      batch.outcomes.push_back(one);
      timeline.add(batch);
      told[window] = one;
      if (round % 3 == 0) {
        timeline.keep_last(20);
        while (told.size() > 20) told.erase(told.begin());
      }
    }
    EXPECT_EQ(timeline.newest_window(0), told.rbegin()->first);
    std::int64_t in_a_row = 0, most = 0;
    for (const auto& [at, outcome] : told) {
      in_a_row = outcome.fate == Fate::skipped ? in_a_row + 1 : 0;
      most = std::max(most, in_a_row);
    }
    EXPECT_EQ(timeline.most_skipped_in_a_row(), most);
    for (std::int64_t at = -5; at < 140; ++at) {
      const auto known = told.find(at);
      const std::optional<Outcome> found = timeline.recorded(0, at);
      ASSERT_EQ(found.has_value(), known != told.end());
      if (!found) continue;
      EXPECT_EQ(found->window, at);
      EXPECT_EQ(found->step, known->second.step);
      EXPECT_EQ(found->fate, known->second.fate);
      EXPECT_EQ(found->loss_scale, known->second.loss_scale);
      EXPECT_EQ(timeline.at(0, at).step, known->second.step);
    }
  }
}

TEST(Timeline, SaysHowManyTriesWereSkippedAtTheEnd) {
  Timeline timeline;
  RecordBatch batch;
  for (std::int64_t window = 0; window < 14; ++window) {
    const std::int64_t step = std::min<std::int64_t>(window, 5);
    batch.outcomes.push_back({0, window, step, 0, window < 5 ? Fate::taken : Fate::skipped});
  }
  timeline.add(batch);
  EXPECT_EQ(timeline.skips_at_end(),
            "the last 9 of 14 tries of a step were skipped, from step 5 on");
}

}  // namespace
}  // namespace trainmon
