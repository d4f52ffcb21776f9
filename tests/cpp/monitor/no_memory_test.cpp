// The n-th allocation of the writer thread, or of a training thread, fails, for every n until one
// is not reached: attaching, steps, flush and stop, with every sink. Nothing ends the process,
// nothing raises after the start, the account of rows holds, and what it calls written is in sound
// files. SQLite and zstd allocate with malloc(), so that is what fails. TRAINMON_WHOLE=1: every n.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "campaign.h"
#include "monitor_fixture.h"
#include "sound_files.h"

namespace {

// Allocations of one side are counted; those from number `first` on fail, `size` of them.
std::atomic<bool> armed{false};
std::atomic<bool> awaited{false};  // the next line of the log arms
std::atomic<bool> on_writer{false};
std::atomic<long> seen{0};
std::atomic<long> first{0};
std::atomic<long> size{0};
thread_local bool is_training = false;

bool fails() noexcept {
  if (!armed.load(std::memory_order_relaxed) || is_training == on_writer.load()) return false;
  const long number = ++seen;
  if (number < first || number - first >= size) return false;
  errno = ENOMEM;
  return true;
}

}  // namespace

// In place of glibc's, which stay reachable under these names; operator new calls them, too.
extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* memory, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);

void* malloc(std::size_t bytes) {
  return fails() ? nullptr : __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) {
  return fails() ? nullptr : __libc_calloc(count, bytes);
}
void* realloc(void* memory, std::size_t bytes) {
  return fails() ? nullptr : __libc_realloc(memory, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  return fails() ? nullptr : __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) {
  if (fails()) return ENOMEM;
  *memory = __libc_memalign(alignment, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}
}

namespace trainmon {
namespace {

namespace fs = std::filesystem;

using testing::expect_sound_files;
using testing::observe;
using testing::Scratch;
using testing::series_of;

// One of each step; an alert and a NaN are among them.
const std::vector<std::vector<float>> kValues = {{1.0f, 2.0f},    {1.0f, 2.0f}, {1.0f, 2.0f},
                                                 {1000.0f, 2.0f}, {1.0f, NAN},  {1.0f, 2.0f}};

struct Failing {
  long first = 0;
  long size = 1;
  bool on_writer = true;
  std::vector<std::string> sinks = {"log", "csv"};
};

std::size_t threads_now() {
  const fs::directory_iterator tasks("/proc/self/task");
  return static_cast<std::size_t>(std::distance(begin(tasks), end(tasks)));
}

void expect_account(const Health& health, const fs::path& run) {
  for (const SinkHealth& sink : health.sinks) {
    SCOPED_TRACE(sink.name);
    std::int64_t total = sink.rows_written;
    for (const auto& [reason, rows] : sink.rows_dropped) total += rows;
    EXPECT_EQ(total, health.rows_produced);
    expect_sound_files(run, sink.name, sink.rows_written);
  }
}

// As add_series() says, it may raise where there is no memory; whoever asks again gets one series.
SeriesId series_asked_for(Monitor& monitor) {
  static const std::string name = "a name that is too long to be kept without memory";
  while (true) {
    try {
      const SeriesId id = series_of(monitor, name);
      EXPECT_EQ(series_of(monitor, name), id);
      EXPECT_EQ(monitor.series().size(), 1u);
      return id;
    } catch (const std::bad_alloc&) {
    }
  }
}

// What a training does. The start may refuse, with an exception that says why: then nullopt.
std::optional<Health> run_with(const Config& config) {
  std::optional<Monitor> monitor;
  try {
    monitor.emplace(config, Identity{});
    monitor->add_optimizer(0);
  } catch (const std::exception&) {
    return std::nullopt;
  }
  const SeriesId w = series_asked_for(*monitor);
  for (const std::vector<float>& values : kValues) {
    observe(*monitor, w, values);
    monitor->begin_attempt(0);
    monitor->add_scalar("loss", 1.0);
    monitor->end_attempt(0, Fate::taken, 1.0);
    monitor->seal(Moment::after_step);
    EXPECT_TRUE(monitor->settle(20.0));
  }
  monitor->flush(20.0);
  EXPECT_EQ(monitor->step(0), std::ssize(kValues));
  monitor->stop();
  armed = false;
  return monitor->health();
}

// How many allocations the chosen side made while it could fail.
long train(const Failing& failing) {
  const Scratch scratch;
  Config config = scratch.config();
  config.sinks = failing.sinks;
  config.flush_seconds = 0.005;
  config.stop_timeout_seconds = 20.0;
  config.alert_deviation = 0.5;
  config.alert_warmup = 2;
  config.recorder_mb = 0.1;
  const std::size_t threads = threads_now();
  seen = 0;
  first = failing.first;
  size = failing.size;
  on_writer = failing.on_writer;
  // The start tells of a directory that anybody may write to: from there on allocations fail.
  // Before it configurations are parsed by nlohmann's JSON, whose destructor ends the process.
  fs::permissions(scratch.path, fs::perms::all);
  awaited = true;
  const std::optional<Health> health = run_with(config);
  armed = false;
  EXPECT_GT(seen, 0);
  EXPECT_TRUE(health || !failing.on_writer) << "the writer thread has no part in the start";
  if (health) expect_account(*health, scratch.path);
  // The kernel takes a moment to forget one that has been joined.
  for (int i = 0; i < 1000 && threads_now() > threads; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_EQ(threads_now(), threads) << "a thread was left behind";
  return seen;
}

class NoMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    is_training = true;
    before_ = set_log_hook([](std::string_view) {
      if (awaited.exchange(false)) armed = true;
    });
  }
  void TearDown() override { set_log_hook(before_); }

  // From the first allocation on, `stride` apart, until one is not reached any more.
  void sweep(Failing failing, long stride) {
    for (failing.first = 1; !HasFailure(); failing.first += is_whole_campaign() ? 1 : stride) {
      SCOPED_TRACE("allocation " + std::to_string(failing.first));
      ++runs_;
      long reached = 0;
      EXPECT_NO_THROW(reached = train(failing)) << "raised into training";
      if (reached < failing.first) break;
    }
    EXPECT_GT(failing.first, 15);
  }

  long runs_ = 0;

 private:
  LogHook before_ = nullptr;
};

const std::vector<std::string> kAll = {"log", "csv", "sqlite", "tensorboard", "memory"};

TEST_F(NoMemory, OnTheWriterThreadOnce) {
  const Campaign campaign("allocations_writer",
                          "every allocation of the writer thread fails once, from the start to the "
                          "stop, with every sink",
                          "allocations");
  sweep({.size = 1, .sinks = kAll}, 14);
  campaign.tell(runs_, HasFailure());
}

TEST_F(NoMemory, OnTheWriterThreadForALongTime) {
  const Campaign campaign("allocations_writer_long",
                          "40 allocations of the writer thread fail in a row, from every one on",
                          "allocations");
  sweep({.size = 40, .sinks = kAll}, 53);
  campaign.tell(runs_, HasFailure());
}

TEST_F(NoMemory, OnTheWriterThreadForEver) {
  for (const long n : {1L, 10L, 30L, 100L, 300L, 1000L}) {
    train({.first = n, .size = 1L << 40, .sinks = kAll});
  }
}

TEST_F(NoMemory, OnATrainingThread) {
  const Campaign campaign("allocations_training",
                          "every allocation of a training thread in trainmon fails, once and 20 in "
                          "a row, from the start to the stop, with every sink",
                          "allocations");
  sweep({.size = 1, .on_writer = false, .sinks = kAll}, 3);
  sweep({.size = 20, .on_writer = false, .sinks = kAll}, 13);
  campaign.tell(runs_, HasFailure());
}

}  // namespace
}  // namespace trainmon
