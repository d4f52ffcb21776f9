// Every call on the files of a run fails once, fails for good, does half, or is slow, at every
// place from the start to the stop: no crash, no hang, no exception after the start, the account of
// rows holds, and what it calls written is in sound files. TRAINMON_WHOLE=1: all of them; else a
// sample.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "campaign.h"
#include "run_child.h"
#include "scratch.h"
#include "sound_files.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

constexpr int kSteps = 12;

// How many calls there were.
long expect_harmless(const Fault& fault, const char* fsync) {
  SCOPED_TRACE(fault.text() + ", fsync " + fsync);
  const Scratch scratch;
  const Ended ended = run_child(scratch.path(), fault, kSteps, fsync);
  EXPECT_FALSE(ended.has_hung) << ended.record.size() << " calls, the last one "
                               << (ended.record.empty() ? "" : ended.record.back());
  EXPECT_TRUE(WIFEXITED(ended.status)) << "signal " << WTERMSIG(ended.status);
  const bool is_refused = WEXITSTATUS(ended.status) == 3;
  EXPECT_TRUE(is_refused || WEXITSTATUS(ended.status) == 0) << ended.output;
  if (is_refused || ended.has_hung) return std::ssize(ended.record);
  std::istringstream account(ended.output);
  std::string sink;
  long produced = 0, written = 0, dropped = 0, gone = 0;
  int sinks = 0;
  while (account >> sink >> produced >> written >> dropped >> gone) {
    SCOPED_TRACE(sink);
    ++sinks;
    EXPECT_EQ(produced, 4 * kSteps);
    EXPECT_EQ(written + dropped, produced);
    testing::expect_sound_files(scratch.path() / "run", sink, written - gone);
  }
  EXPECT_EQ(sinks, 4) << ended.output;
  return std::ssize(ended.record);
}

std::vector<Fault> all_faults(long calls) {
  constexpr long kForGood = 1L << 40;
  std::vector<Fault> all;
  for (long first = 1; first <= calls; ++first) {
    for (const long size : {1L, kForGood}) {
      for (const int error : {ENOSPC, EIO, EINTR, EDQUOT, EROFS, EMFILE, ENOENT, EACCES}) {
        all.push_back({"errno:" + std::to_string(error), first, size});
      }
      all.push_back({"short", first, size});
    }
    all.push_back({"slow:30", first, 1});
  }
  return all;
}

TEST(FailingCalls, HurtNothingAndAreCounted) {
  const Campaign campaign(
      "calls",
      "every call on the files of a run fails with eight errors, does half or is "
      "slow, once and for good, from the start to the stop, with every sink",
      "runs");
  const long calls = expect_harmless({"none", 0, 0}, "never");
  EXPECT_GT(expect_harmless({"none", 0, 0}, "flush"), calls);
  ASSERT_GT(calls, 200);
  std::vector<Fault> faults = all_faults(calls + calls / 4);  // the syncs, too
  std::printf("%ld calls\n", calls);
  if (!is_whole_campaign()) {
    std::mt19937 random(25);
    std::shuffle(faults.begin(), faults.end(), random);
    faults.resize(120);
    faults.push_back({"slow:5", 1, 1L << 40});
    for (long first = 1; first <= 80; ++first) faults.push_back({"errno:5", first, 1});
  }
  // Most of them wait for something most of the time.
  std::atomic<std::size_t> next{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (std::size_t at = next++; at < faults.size(); at = next++) {
        expect_harmless(faults[at], at % 2 == 0 ? "never" : "flush");
        if (is_whole_campaign()) expect_harmless(faults[at], at % 2 == 0 ? "flush" : "never");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  campaign.tell(std::ssize(faults) * (is_whole_campaign() ? 2 : 1), HasFailure());
}

}  // namespace
}  // namespace trainmon
