// kill -9 at any instant: every slot of the ring is a true event or is told to be unfinished.
// TRAINMON_KILLS sets the number of kills (300 unless set).
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "flight_events.h"
#include "scratch.h"

namespace trainmon {
namespace {

// Starts a child, ends it, and waits for it. It kills itself in the middle of a slot where
// `failpoints` say so.
void start_and_kill(const std::filesystem::path& directory, int threads, const char* failpoints,
                    std::chrono::microseconds life) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (failpoints != nullptr) ::setenv("TRAINMON_FAILPOINTS_SPEC", failpoints, 1);
    const std::string count = std::to_string(threads);
    ::execl(FLIGHT_CHILD, FLIGHT_CHILD, directory.c_str(), count.c_str(), nullptr);
    ::_exit(127);
  }
  std::this_thread::sleep_for(life);
  if (failpoints == nullptr) ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "status " << status;
}

TEST(FlightKill, EverySlotIsTrueOrUnfinished) {
  const char* const wanted = std::getenv("TRAINMON_KILLS");
  const int kills = wanted != nullptr ? std::atoi(wanted) : 300;
  const unsigned seed = std::random_device{}();
  std::printf("%d kills, seed %u\n", kills, seed);
  std::mt19937 random(seed);
  std::uint64_t events = 0, unfinished = 0;
  int wrapped = 0;
  for (int i = 0; i < kills; ++i) {
    const Scratch scratch;
    const int threads = 1 + static_cast<int>(random() % 4);
    const bool in_a_slot = i % 2 == 0;
    const std::string spec = "flight.slot=kill@" + std::to_string(1 + random() % 5000);
    const auto life = std::chrono::microseconds(in_a_slot ? 0 : 2000 + random() % 8000);
    start_and_kill(scratch.path(), threads, in_a_slot ? spec.c_str() : nullptr, life);
    const auto files = flight_files(scratch.path());
    if (files.empty()) continue;  // killed before it had begun
    FlightRecord record;
    try {
      record = read_flight(files.front());
    } catch (const SinkError& error) {  // killed before the header was whole
      EXPECT_FALSE(in_a_slot) << error.what();
      continue;
    }
    EXPECT_TRUE(record.damage.empty());
    // A thread that stood still for a whole lap of this small ring writes where another one did.
    const auto others = static_cast<std::uint64_t>(threads - 1);
    EXPECT_LE(record.damaged, others);
    EXPECT_LE(record.unfinished + record.damaged, 1 + 2 * others);
    if (in_a_slot) {
      EXPECT_GE(record.unfinished, 1u) << "the slot that was torn in half";
    }
    for (const flight::Slot& event : record.events) {
      ASSERT_TRUE(is_true_row(event)) << "event " << event.seq;
    }
    // One by one, nothing is left out but what is overwritten or unfinished.
    EXPECT_GE(record.events.size() + record.unfinished + record.damaged,
              std::min(record.claimed, record.slots));
    events += record.events.size();
    unfinished += record.unfinished;
    wrapped += record.overwritten > 0;
  }
  std::printf("%llu events read back, %llu unfinished, %d rings had wrapped\n",
              static_cast<unsigned long long>(events), static_cast<unsigned long long>(unfinished),
              wrapped);
  EXPECT_GT(events, static_cast<std::uint64_t>(kills) * 10);
  EXPECT_GT(wrapped, kills / 10);
}

}  // namespace
}  // namespace trainmon
