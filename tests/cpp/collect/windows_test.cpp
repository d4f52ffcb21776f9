// Steps, attempts and outcomes: skips fused and not, accumulation of unknown length, late fates.
#include "collect/windows.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace trainmon {
namespace {

struct Fixture {
  std::vector<Outcome> outcomes;
  Windows windows;
  explicit Fixture(Schedule schedule = {})
      : windows(schedule, [this](const Outcome& outcome) { outcomes.push_back(outcome); }) {}
};

void expect(const Outcome& outcome, std::int64_t window, std::int64_t step, std::int32_t attempt,
            Fate fate) {
  EXPECT_EQ(outcome.window, window);
  EXPECT_EQ(outcome.step, step);
  EXPECT_EQ(outcome.attempt, attempt);
  EXPECT_EQ(outcome.fate, fate);
}

TEST(Windows, APlainLoopCountsSteps) {
  Fixture f;
  const int opt = f.windows.add_optimizer(7);
  for (std::int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(f.windows.step(opt), 7 + i);
    EXPECT_EQ(f.windows.window(opt), i);
    EXPECT_EQ(f.windows.on_backward(opt, 100 + i), 0);
    f.windows.begin_attempt(opt);
    f.windows.end_attempt(opt, Fate::taken, 1.0);
  }
  ASSERT_EQ(f.outcomes.size(), 3u);
  for (std::int64_t i = 0; i < 3; ++i) {
    expect(f.outcomes[static_cast<std::size_t>(i)], i, 7 + i, 0, Fate::taken);
  }
}

// Accumulation of unknown length: each backward is an ordinal, the last one is whatever came last.
TEST(Windows, AccumulationNeedsNoDeclaredLength) {
  Fixture f;
  const int opt = f.windows.add_optimizer(0);
  std::int64_t task = 0;
  for (const int length : {1, 4, 2, 9}) {
    for (std::int32_t i = 0; i < length; ++i) {
      EXPECT_EQ(f.windows.next_accum(opt), i);
      ++task;
      for (int hook = 0; hook < 3; ++hook) EXPECT_EQ(f.windows.on_backward(opt, task), i);
      EXPECT_EQ(f.windows.accum(opt), i);
    }
    f.windows.begin_attempt(opt);
    EXPECT_EQ(f.windows.accum(opt), length - 1);
    f.windows.end_attempt(opt, Fate::taken, 1.0);
    EXPECT_EQ(f.windows.next_accum(opt), 0);
  }
  EXPECT_EQ(f.outcomes.size(), 4u);
}

// Non-fused: GradScaler never calls step, the window is abandoned and the step tried again.
TEST(Windows, AnUnfusedSkipIsAnotherAttemptAtTheSameStep) {
  Fixture f;
  const int opt = f.windows.add_optimizer(10);
  f.windows.on_backward(opt, 1);
  f.windows.abandon(opt, Fate::skipped, 65536.0);
  EXPECT_EQ(f.windows.step(opt), 10);
  f.windows.on_backward(opt, 2);
  f.windows.begin_attempt(opt);
  f.windows.end_attempt(opt, Fate::taken, 32768.0);
  ASSERT_EQ(f.outcomes.size(), 2u);
  expect(f.outcomes[0], 0, 10, 0, Fate::skipped);
  EXPECT_EQ(f.outcomes[0].loss_scale, 65536.0);
  expect(f.outcomes[1], 1, 10, 1, Fate::taken);
  EXPECT_EQ(f.windows.step(opt), 11);
}

// Fused on a device: both hooks fire and whether the step was skipped is known only later.
TEST(Windows, AFusedSkipIsDecidedLaterAndInOrder) {
  Fixture f;
  const int opt = f.windows.add_optimizer(0);
  for (int i = 0; i < 3; ++i) {
    f.windows.begin_attempt(opt);
    f.windows.end_attempt(opt, std::nullopt, 1.0);
  }
  EXPECT_TRUE(f.outcomes.empty());
  EXPECT_EQ(f.windows.step(opt), 3);
  f.windows.decide(opt, 1, Fate::taken, 2.0);
  EXPECT_TRUE(f.outcomes.empty());
  f.windows.decide(opt, 0, Fate::skipped, 4.0);
  ASSERT_EQ(f.outcomes.size(), 2u);
  expect(f.outcomes[0], 0, 0, 0, Fate::skipped);
  expect(f.outcomes[1], 1, 0, 1, Fate::taken);
  EXPECT_EQ(f.windows.step(opt), 2);
  f.windows.decide(opt, 2, Fate::taken, 2.0);
  expect(f.outcomes[2], 2, 1, 0, Fate::taken);
}

TEST(Windows, AStepThatRaisedIsUnknown) {
  Fixture f;
  const int opt = f.windows.add_optimizer(0);
  f.windows.begin_attempt(opt);
  f.windows.begin_attempt(opt);
  f.windows.end_attempt(opt, Fate::taken, 1.0);
  ASSERT_EQ(f.outcomes.size(), 2u);
  expect(f.outcomes[0], 0, 0, 0, Fate::unknown);
  expect(f.outcomes[1], 1, 0, 1, Fate::taken);
}

TEST(Windows, TheStartStepCanBeLearntLateButOnlyBeforeTheFirstOutcome) {
  Fixture f;
  const int opt = f.windows.add_optimizer(0);
  f.windows.set_start_step(opt, 500);
  EXPECT_EQ(f.windows.step(opt), 500);
  f.windows.begin_attempt(opt);
  f.windows.end_attempt(opt, Fate::taken, 1.0);
  f.windows.set_start_step(opt, 0);
  EXPECT_EQ(f.windows.step(opt), 501);
  EXPECT_EQ(f.windows.start_steps(), std::vector<std::int64_t>{500});
}

TEST(Windows, EachOptimizerHasItsOwnClock) {
  Fixture f;
  const int g = f.windows.add_optimizer(0);
  const int d = f.windows.add_optimizer(5);
  f.windows.on_backward(d, 1);
  f.windows.begin_attempt(d);
  f.windows.end_attempt(d, Fate::taken, 1.0);
  EXPECT_EQ(f.windows.window(g), 0);
  EXPECT_EQ(f.windows.next_accum(g), 0);
  EXPECT_EQ(f.windows.step(d), 6);
  EXPECT_EQ(f.outcomes.at(0).optimizer, d);
}

TEST(Windows, TheScheduleDecidesWhatIsRecorded) {
  Schedule schedule;
  schedule.start = 4;
  schedule.stop = 11;
  schedule.every = 3;
  Fixture f(schedule);
  const int opt = f.windows.add_optimizer(0);
  std::vector<std::int64_t> taken;
  for (std::int64_t step = 0; step < 15; ++step) {
    if (f.windows.recording(opt)) taken.push_back(step);
    f.windows.begin_attempt(opt);
    f.windows.end_attempt(opt, Fate::taken, 1.0);
  }
  EXPECT_EQ(taken, (std::vector<std::int64_t>{4, 7, 10}));
  schedule.rank_selected = false;
  EXPECT_FALSE(schedule.takes(4));
}

TEST(Windows, AnUnknownOptimizerIsHarmless) {
  Fixture f;
  for (const int opt : {-1, 0, 7, 1000}) {
    f.windows.begin_attempt(opt);
    f.windows.end_attempt(opt, Fate::taken, 1.0);
    f.windows.decide(opt, 0, Fate::taken, 1.0);
    EXPECT_EQ(f.windows.on_backward(opt, 3), 0);
    EXPECT_FALSE(f.windows.recording(opt));
    EXPECT_EQ(f.windows.step_of(opt, 0), -1);
  }
  EXPECT_TRUE(f.outcomes.empty());
}

TEST(Windows, TheStepOfAClosedWindowIsRemembered) {
  Fixture f;
  const int opt = f.windows.add_optimizer(3);
  f.windows.begin_attempt(opt);
  f.windows.end_attempt(opt, Fate::taken, 1.0);
  EXPECT_EQ(f.windows.step_of(opt, 0), 3);
  EXPECT_EQ(f.windows.step_of(opt, 1), 4);
  EXPECT_EQ(f.windows.step_of(opt, 99), -1);
}

// Backward hooks of several autograd threads agree on the ordinal.
TEST(Windows, ConcurrentHooksOfOneBackwardCountOnce) {
  Fixture f;
  const int opt = f.windows.add_optimizer(0);
  for (std::int64_t task = 1; task <= 200; ++task) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] { f.windows.on_backward(opt, task); });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(f.windows.accum(opt), task - 1);
  }
}

}  // namespace
}  // namespace trainmon
