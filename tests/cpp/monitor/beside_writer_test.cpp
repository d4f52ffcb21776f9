// Readers of every kind and a compaction beside a monitor that writes, all in one process, so that
// the thread sanitizer sees them: they lose, double and change nothing. TRAINMON_WHOLE=1: runs for
// an hour; else one.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "answers/diagnose.h"
#include "answers/tail.h"
#include "campaign.h"
#include "monitor_fixture.h"
#include "read/compact.h"
#include "read/run_growth.h"
#include "read/run_stream.h"
#include "trainmon/first_bad.h"

namespace trainmon {
namespace {

using testing::observe;
using testing::Scratch;
using testing::series_of;

#ifdef __SANITIZE_THREAD__
constexpr const char* kName = "beside_tsan";
#else
constexpr const char* kName = "beside";
#endif

constexpr std::int64_t kStepsWritten = 12000;
constexpr int kTensorsWritten = 12;
constexpr double kSegmentMegabytes = 1.1;  // somewhat more than an index is kept for

std::string tensor_name(int tensor) {
  return "w" + std::to_string(tensor);
}

double written_value(std::int64_t step, const std::string& tensor) {
  const int number = std::stoi(tensor.substr(1));
  return static_cast<double>(1 + (step * 31 + number * 7) % 1000);
}

void write_run(Monitor& monitor) {
  std::vector<SeriesId> series;
  for (int i = 0; i < kTensorsWritten; ++i) series.push_back(series_of(monitor, tensor_name(i)));
  for (std::int64_t i = 0; i < kStepsWritten; ++i) {
    const std::int64_t step = monitor.step(0);
    for (int tensor = 0; tensor < kTensorsWritten; ++tensor) {
      const double value = written_value(step, tensor_name(tensor));
      observe(monitor, series[static_cast<std::size_t>(tensor)], {static_cast<float>(value)});
    }
    monitor.add_scalar("loss", static_cast<double>(step));
    monitor.begin_attempt(0);
    monitor.end_attempt(0, Fate::taken, 1.0);
    monitor.seal(Moment::after_step);
    if (i % 20 == 0) monitor.flush(60.0);
  }
  EXPECT_TRUE(monitor.flush(60.0));
}

void expect_no_damage(const std::vector<Damage>& damage) {
  for (const Damage& one : damage) ADD_FAILURE() << one.file << ": " << one.what;
}

// What one reader was given of a run.
class Given {
 public:
  void add(const std::string& tensor, std::int64_t step, double value) {
    EXPECT_EQ(value, written_value(step, tensor)) << tensor << " in step " << step;
    EXPECT_TRUE(steps_[tensor].insert(step).second) << tensor << ": step " << step << " twice";
  }
  // No hole; returns the rows.
  std::int64_t expect_prefix() const {
    std::int64_t rows = 0;
    for (const auto& [tensor, steps] : steps_) {
      const auto count = static_cast<std::int64_t>(steps.size());
      EXPECT_EQ(*steps.rbegin() + 1, count) << tensor;
      rows += count;
    }
    return rows;
  }
  void forget() { steps_.clear(); }

 private:
  std::map<std::string, std::set<std::int64_t>> steps_;
};

constexpr std::int64_t kRowsWritten = kStepsWritten * kTensorsWritten;

// The whole run again and again. The last time is after the end, as of all readers.
class WholeReader {
 public:
  explicit WholeReader(const std::filesystem::path& run) : run_(run) {}
  void look() {
    ReadOptions options;
    options.threads = 2;
    const RunRows read = read_run(run_, options);
    expect_no_damage(read.damage);
    Given given;
    for (const ReadRow& row : read.rows) {
      given.add(read.series[row.series].name, row.step, derive(Stat::max, row.state));
    }
    const std::int64_t rows = given.expect_prefix();
    EXPECT_GE(rows, rows_);
    rows_ = rows;
    std::int64_t step = 0;
    for (const ReadScalar& one : read.scalars) EXPECT_EQ(one.value, static_cast<double>(step++));
    EXPECT_LE(std::abs(step * kTensorsWritten - rows), 2 * kTensorsWritten);
  }
  void expect_all() const { EXPECT_EQ(rows_, kRowsWritten); }

 private:
  const std::filesystem::path run_;
  std::int64_t rows_ = 0;
};

// As `tail` does.
class Follower {
 public:
  explicit Follower(const std::filesystem::path& run) : tail_(run, {}, false, 1) {}
  void look() {
    const TailNews news = tail_.look();
    expect_no_damage(news.damage);
    for (const TailStep& step : news.steps) add(step);
  }
  void expect_all() {
    for (int i = 0; i < 2 * kTailPatience; ++i) look();
    for (const TailStep& step : tail_.unfinished().steps) add(step);
    ASSERT_FALSE(told_.empty());
    EXPECT_EQ(*told_.rbegin(), kStepsWritten - 1);
    EXPECT_EQ(*told_.rbegin() - *told_.begin() + 1, std::ssize(told_));
  }

 private:
  void add(const TailStep& step) {
    EXPECT_TRUE(told_.insert(step.outcome.step).second) << step.outcome.step << " twice";
    EXPECT_EQ(step.rows, kTensorsWritten) << step.outcome.step;
  }
  RunTail tail_;
  std::set<std::int64_t> told_;
};

// As the live page does: what is settled is read once.
class GrowthReader {
 public:
  explicit GrowthReader(const std::filesystem::path& run) : run_(run) {}
  void look() {
    ReadOptions options;
    options.threads = 2;
    const RunStream stream(run_, options);
    expect_no_damage(stream.facts().damage);
    if (!growth_.look(stream)) {
      settled_.forget();
      ++begun_;
    }
    read(stream, growth_.settled(), settled_);
    Given all = settled_;
    read(stream, growth_.open(), all);
    rows_ = all.expect_prefix();
  }
  void expect_all() const {
    EXPECT_EQ(rows_, kRowsWritten);
    EXPECT_LE(begun_, 1 + kTensorsWritten);  // where series are new
  }

 private:
  static void read(const RunStream& stream, const std::vector<RunStream::Piece>& pieces,
                   Given& to) {
    std::vector<Damage> damage;
    RunStream::Take take;
    take.row = [&](const ReadRow& row) {
      to.add(stream.facts().series[row.series].name, row.step, derive(Stat::max, row.state));
    };
    for (const RunStream::Piece& piece : pieces) stream.read(piece, take, damage);
    expect_no_damage(damage);
  }
  const std::filesystem::path run_;
  RunGrowth growth_;
  Given settled_;
  std::int64_t rows_ = 0;
  int begun_ = 0;
};

// What commands answer of a sound run; they use and write the indexes of its segments.
void expect_sound(const std::filesystem::path& run) {
  ReadOptions options;
  options.threads = 2;
  const FirstBadOfRun bad = first_bad(run, options);
  EXPECT_FALSE(bad.found.has_value());
  expect_no_damage(bad.run.damage);
  const Diagnosis diagnosis = diagnose(run, options);
  EXPECT_TRUE(diagnosis.findings.empty());
}

void compact_closed(const std::filesystem::path& run) {
  expect_no_damage(compact(run, [](auto, auto) { return true; }).damage);
}

// A thread that looks until `is_over`, and how often it did.
class Looking {
 public:
  Looking(const std::atomic<bool>& is_over, std::function<void()> look)
      : thread_([this, &is_over, look = std::move(look)] {
          for (; !is_over && !::testing::Test::HasFailure(); ++looks_) look();
        }) {}
  long join() {
    thread_.join();
    return looks_;
  }

 private:
  long looks_ = 0;
  std::thread thread_;
};

// Returns how often readers looked.
long write_and_read() {
  const Scratch scratch;
  Config config = scratch.config();
  config.segment_mb = kSegmentMegabytes;
  config.flush_seconds = 0.002;
  config.overflow = Overflow::block;
  Monitor monitor(config, Identity{});
  monitor.add_optimizer(0);
  WholeReader whole(scratch.path);
  Follower follower(scratch.path);
  GrowthReader growth(scratch.path);
  long looks = 0;
  {
    std::atomic<bool> is_over = false;
    Looking wholes(is_over, [&] { whole.look(); });
    Looking follows(is_over, [&] { follower.look(); });
    Looking grows(is_over, [&] { growth.look(); });
    Looking answers(is_over, [&] { expect_sound(scratch.path); });
    Looking compacts(is_over, [&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      compact_closed(scratch.path);
    });
    write_run(monitor);
    is_over = true;
    for (Looking* one : {&wholes, &follows, &grows, &answers, &compacts}) looks += one->join();
  }
  monitor.stop();
  compact_closed(scratch.path);
  whole.look();
  whole.expect_all();
  follower.expect_all();
  growth.look();
  growth.expect_all();
  expect_sound(scratch.path);
  return looks;
}

TEST(BesideWriter, ReadersLoseAndDoubleNothing) {
  const Campaign campaign(
      kName,
      "readings of runs beside their writer and a compaction, in one process: the whole, a "
      "follower, what is new of a run that grows, `first-bad`, `diagnose`",
      "readings");
  const auto end = std::chrono::steady_clock::now() + std::chrono::hours(1);
  long looks = 0;
  do {
    looks += write_and_read();
  } while (is_whole_campaign() && !HasFailure() && std::chrono::steady_clock::now() < end);
  EXPECT_GT(looks, 10);
  campaign.tell(looks, HasFailure());
}

}  // namespace
}  // namespace trainmon
