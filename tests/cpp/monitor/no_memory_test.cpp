// The n-th allocation of the writer thread, or of a training thread, fails, for every n: nothing
// ends the process, nothing raises, and the account of rows holds.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "monitor_fixture.h"

namespace {

// Allocations of one side are counted; those from number `first` on fail, `size` of them.
std::atomic<bool> armed{false};
std::atomic<bool> on_writer{false};
std::atomic<long> seen{0};
std::atomic<long> first{0};
std::atomic<long> size{0};
thread_local bool is_training = false;

bool fails() noexcept {
  if (!armed.load(std::memory_order_relaxed) || is_training == on_writer.load()) return false;
  const long number = ++seen;
  return number >= first && number - first < size;
}

void* allocate(std::size_t bytes, std::size_t alignment) {
  if (fails()) throw std::bad_alloc();
  void* found =
      alignment <= alignof(std::max_align_t)
          ? std::malloc(bytes)
          : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (found == nullptr) throw std::bad_alloc();
  return found;
}

// Not inlined, for GCC warns where it sees free() take what operator new gave.
[[gnu::noinline]] void release(void* memory) noexcept {
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t bytes) {
  return allocate(bytes, 1);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  release(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  release(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  release(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  release(memory);
}

namespace trainmon {
namespace {

using testing::observe;
using testing::Scratch;
using testing::series_of;

constexpr int kSteps = 6;

struct Failing {
  long first = 0;
  long size = 1;
  bool on_writer = true;
  std::vector<std::string> sinks = {"log", "csv"};
};

// How many allocations the chosen side made while it could fail.
long train(const Failing& failing) {
  const Scratch scratch;
  Config config = scratch.config();
  config.sinks = failing.sinks;
  config.flush_seconds = 0.005;
  config.stop_timeout_seconds = 20.0;
  config.alert_deviation = 0.5;
  config.alert_warmup = 2;
  Health health;
  {
    Monitor monitor(config, Identity{});
    monitor.add_optimizer(0);
    const SeriesId w = series_of(monitor, "a name that is too long to be kept without memory");
    std::vector<std::vector<float>> values(kSteps, {1.0f, 2.0f});
    values[3][0] = 1000.0f;
    values[4][1] = NAN;
    seen = 0;
    first = failing.first;
    size = failing.size;
    on_writer = failing.on_writer;
    armed = true;
    for (int step = 0; step < kSteps; ++step) {
      observe(monitor, w, values[static_cast<std::size_t>(step)]);
      monitor.begin_attempt(0);
      monitor.add_scalar("loss", 1.0);
      monitor.end_attempt(0, Fate::taken, 1.0);
      monitor.seal(Moment::after_step);
      EXPECT_TRUE(monitor.settle(20.0));
    }
    EXPECT_EQ(monitor.step(0), kSteps);
    monitor.stop();
    armed = false;
    health = monitor.health();
  }
  std::int64_t written_to_log = 0;
  for (const SinkHealth& sink : health.sinks) {
    std::int64_t total = sink.rows_written;
    for (const auto& [reason, rows] : sink.rows_dropped) total += rows;
    EXPECT_EQ(total, health.rows_produced) << sink.name;
    if (sink.name == "log") written_to_log = sink.rows_written;
  }
  if (health.rows_produced > 0 && written_to_log > 0) {
    EXPECT_EQ(static_cast<std::int64_t>(read_run(scratch.path).rows.size()), written_to_log);
  }
  return seen;
}

class NoMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    is_training = true;
    before_ = set_log_hook([](std::string_view) {});
  }
  void TearDown() override { set_log_hook(before_); }

  static void sweep(Failing failing, long stride) {
    const long size = std::exchange(failing.size, 0);
    const long most = train(failing);
    ASSERT_GT(most, 15);
    failing.size = size;
    for (failing.first = 1; failing.first <= most && !HasFailure(); failing.first += stride) {
      SCOPED_TRACE(std::to_string(failing.first) + " of " + std::to_string(most));
      train(failing);
    }
  }

 private:
  LogHook before_ = nullptr;
};

TEST_F(NoMemory, OnTheWriterThreadOnce) {
  sweep({.size = 1}, 1);
}

TEST_F(NoMemory, OnTheWriterThreadForALongTime) {
  sweep({.size = 40}, 7);
}

TEST_F(NoMemory, OnTheWriterThreadForEver) {
  for (const long n : {1L, 10L, 30L, 100L}) train({.first = n, .size = 1L << 40});
}

TEST_F(NoMemory, InTheOtherSinks) {
  sweep({.size = 1, .sinks = {"log", "tensorboard", "memory"}}, 5);
  sweep({.size = 40, .sinks = {"log", "sqlite"}}, 31);
}

TEST_F(NoMemory, OnATrainingThread) {
  sweep({.size = 1, .on_writer = false}, 1);
  sweep({.size = 20, .on_writer = false}, 7);
}

}  // namespace
}  // namespace trainmon
