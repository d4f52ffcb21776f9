// The writer thread: the counted law per sink, late values, failing and stalled sinks, bounded
// stop.
#include "pipe/pipe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/log.h"
#include "batches.h"
#include "rules/non_finite.h"

namespace trainmon {
namespace {

using testing::batch_of;
using testing::RecordingSink;
using testing::Seen;
using namespace std::chrono_literals;

class ManualValues final : public LateValues {
 public:
  bool ready() const noexcept override { return ready_; }
  void fill(RecordBatch& batch) noexcept override {
    for (Row& row : batch.rows) row.state.count = 42;
  }
  std::atomic<bool> ready_{false};
};

// A writer that stop() no longer waits for outlives the fixture.
struct Heard {
  std::vector<Alert> alerts;
  std::atomic<int> asked_to_seal{0};
  std::atomic<int> asked_to_write{0};
  std::atomic<bool> refuses{false};
};

struct Fixture {
  std::shared_ptr<Seen> seen = std::make_shared<Seen>();
  std::shared_ptr<testing::Table> table = std::make_shared<testing::Table>(64);
  std::shared_ptr<Pipe> pipe;
  std::shared_ptr<Heard> heard = std::make_shared<Heard>();
  std::int64_t produced = 0;

  explicit Fixture(PipeOptions options = {}, std::shared_ptr<Seen> second = nullptr) {
    if (options.flush_interval == 1s) options.flush_interval = 5ms;
    std::vector<std::unique_ptr<Sink>> sinks;
    sinks.push_back(std::make_unique<RecordingSink>(seen));
    if (second) sinks.push_back(std::make_unique<RecordingSink>(second, "second"));
    std::vector<std::unique_ptr<Rule>> rules;
    rules.push_back(std::make_unique<NonFiniteRule>());
    pipe = std::make_shared<Pipe>(options, RunInfo{}, *table, std::move(sinks), std::move(rules));
    PipeCalls calls;
    calls.before_flush = [heard = heard] { ++heard->asked_to_seal; };
    calls.annotate = [](Alert& alert) { alert.step = 7; };
    calls.on_alert = [heard = heard](const Alert& alert) { heard->alerts.push_back(alert); };
    calls.after_flush = [](bool) {};
    calls.may_write = [heard = heard] {
      ++heard->asked_to_write;
      if (heard->refuses) throw SinkError("another_run", "told to refuse");
    };
    pipe->start(std::move(calls), table);
  }
  ~Fixture() { pipe->stop(5s); }

  void submit(RecordBatch batch) {
    produced += batch.row_count();
    pipe->submit(std::move(batch));
  }
  Health health() {
    Health health;
    pipe->report(health, produced);
    return health;
  }
};

void expect_law(const Health& health) {
  for (const SinkHealth& sink : health.sinks) {
    std::int64_t total = sink.rows_written;
    for (const auto& [reason, rows] : sink.rows_dropped) total += rows;
    EXPECT_EQ(total, health.rows_produced) << sink.name;
  }
}

template <typename Condition>
bool eventually(Condition&& condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(2ms);
  }
  return false;
}

TEST(Pipe, WritesEverythingAndAccountsForIt) {
  Fixture f;
  for (std::uint64_t i = 1; i <= 50; ++i) f.submit(batch_of(i, i * 10, 10));
  f.pipe->stop(5s);
  EXPECT_EQ(f.seen->rows(), 500u);
  EXPECT_EQ(f.seen->closes, 1);
  expect_law(f.health());
  EXPECT_EQ(f.health().rows_pending, 0);
}

TEST(Pipe, TheIntervalAsksForASealWithoutAnyBatch) {
  Fixture f;
  EXPECT_TRUE(eventually([&] { return f.heard->asked_to_seal > 2; }));
}

TEST(Pipe, AFailingSinkIsCountedByReasonAndRecovers) {
  auto second = std::make_shared<Seen>();
  Fixture f({}, second);
  {
    const std::lock_guard lock(f.seen->mutex);
    f.seen->fail_with = "no_space";
  }
  for (std::uint64_t i = 1; i <= 10; ++i) f.submit(batch_of(i, i * 10, 10));
  ASSERT_TRUE(eventually([&] { return second->rows() == 100; }));
  {
    const std::lock_guard lock(f.seen->mutex);
    f.seen->fail_with.clear();
  }
  f.submit(batch_of(11, 200, 10));
  f.pipe->stop(5s);
  const Health health = f.health();
  expect_law(health);
  EXPECT_EQ(health.sinks[0].rows_dropped.at("no_space"), 100);
  EXPECT_EQ(health.sinks[0].rows_written, 10);
  EXPECT_FALSE(health.sinks[0].degraded);
  EXPECT_EQ(health.sinks[1].rows_written, 110);
}

TEST(Pipe, MayWriteIsAskedOnceForABatchAndHoldsForEverySink) {
  auto second = std::make_shared<Seen>();
  Fixture f({}, second);
  for (std::uint64_t i = 1; i <= 5; ++i) f.submit(batch_of(i, i * 10, 10));
  ASSERT_TRUE(eventually([&] { return second->rows() == 50; }));
  EXPECT_EQ(f.heard->asked_to_write, 5);
  f.heard->refuses = true;
  f.submit(batch_of(6, 60, 10));
  f.pipe->stop(5s);
  EXPECT_EQ(f.heard->asked_to_write, 7);  // and of what is owed at the end
  const Health health = f.health();
  expect_law(health);
  for (const SinkHealth& sink : health.sinks) {
    EXPECT_EQ(sink.rows_written, 50);
    EXPECT_EQ(sink.rows_dropped.at("another_run"), 10);
  }
}

// On a nearly full disk every other batch fits: the last word must not be that all is well. Each
// pipe says it, whatever another of the process has said.
TEST(Pipe, ASinkThatComesAndGoesIsSaidToFailOnce) {
  static std::mutex mutex;
  static std::vector<std::string> lines;
  const LogHook before = set_log_hook([](std::string_view line) {
    const std::lock_guard lock(mutex);
    lines.emplace_back(line);
  });
  for (int pipe = 0; pipe < 2; ++pipe) {
    lines.clear();
    Fixture f;
    for (std::uint64_t i = 1; i <= 6; ++i) {
      {
        const std::lock_guard lock(f.seen->mutex);
        f.seen->fail_with = i % 2 == 1 ? "no_space" : "";
      }
      f.submit(batch_of(i, i * 10, 10));
      ASSERT_TRUE(eventually([&] {
        const auto sinks = f.health().sinks;
        std::int64_t known = sinks[0].rows_written;
        for (const auto& [reason, rows] : sinks[0].rows_dropped) known += rows;
        return known == static_cast<std::int64_t>(10 * i);
      }));
    }
    f.pipe->stop(5s);
    const std::lock_guard lock(mutex);
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_NE(lines[0].find("cannot write (no_space)"), std::string::npos) << lines[0];
  }
  set_log_hook(before);
}

// The first batch that a sink writes again says what the ones before it lost, and brings along what
// became of their windows.
TEST(Pipe, WhatASinkCouldNotWriteLeavesAGapAndItsOutcomes) {
  auto second = std::make_shared<Seen>();
  Fixture f({}, second);
  {
    const std::lock_guard lock(f.seen->mutex);
    f.seen->fail_with = "no_space";
  }
  for (std::uint64_t i = 1; i <= 3; ++i) {
    RecordBatch batch = batch_of(i, i * 10, 10);
    batch.outcomes.push_back({0, static_cast<std::int64_t>(i), 0, 0, Fate::taken, 1.0});
    batch.payloads.push_back({PayloadType::text, {.seq = i * 10 + 9}, {}});
    f.submit(std::move(batch));
  }
  ASSERT_TRUE(eventually([&] { return second->rows() == 30; }));
  {
    const std::lock_guard lock(f.seen->mutex);
    f.seen->fail_with.clear();
  }
  f.submit(batch_of(4, 200, 10));
  f.submit(batch_of(5, 300, 10));
  f.pipe->stop(5s);
  const std::vector<RecordBatch>& batches = f.seen->batches;
  ASSERT_EQ(batches.size(), 2u);
  ASSERT_EQ(batches[0].gaps.size(), 1u);
  EXPECT_EQ(batches[0].gaps[0].reason, "no_space");
  EXPECT_EQ(batches[0].gaps[0].rows, 33);
  EXPECT_EQ(batches[0].gaps[0].first_seq, 10u);
  EXPECT_EQ(batches[0].gaps[0].last_seq, 39u);
  ASSERT_EQ(batches[0].outcomes.size(), 3u);
  EXPECT_EQ(batches[0].outcomes[2].window, 3);
  EXPECT_TRUE(batches[1].gaps.empty() && batches[1].outcomes.empty());
  for (const RecordBatch& batch : second->batches) EXPECT_TRUE(batch.gaps.empty());
  expect_law(f.health());
  EXPECT_EQ(f.health().sinks[0].rows_dropped.at("no_space"), 33);
}

TEST(Pipe, ASinkThatCannotOpenIsTriedAgain) {
  Fixture f;
  {
    const std::lock_guard lock(f.seen->mutex);
    f.seen->fail_open = true;
  }
  f.submit(batch_of(1, 1, 5));
  ASSERT_TRUE(eventually([&] { return f.health().sinks[0].degraded; }));
  {
    const std::lock_guard lock(f.seen->mutex);
    f.seen->fail_open = false;
  }
  f.submit(batch_of(2, 10, 5));
  f.pipe->stop(5s);
  EXPECT_EQ(f.seen->rows(), 5u);
  EXPECT_EQ(f.health().sinks[0].rows_dropped.at("permission"), 5);
  expect_law(f.health());
}

TEST(Pipe, LateValuesDoNotHoldUpOtherBatches) {
  Fixture f;
  auto values = std::make_shared<ManualValues>();
  RecordBatch late = batch_of(1, 1, 4);
  late.late = values;
  f.submit(std::move(late));
  f.submit(batch_of(2, 10, 3));
  ASSERT_TRUE(eventually([&] { return f.seen->rows() == 3; }));
  values->ready_ = true;
  f.pipe->wake();
  ASSERT_TRUE(eventually([&] { return f.seen->rows() == 7; }));
  f.pipe->stop(5s);
  EXPECT_EQ(f.seen->batches[0].number, 2u);
  EXPECT_EQ(f.seen->batches[1].number, 1u);
  EXPECT_EQ(f.seen->batches[1].rows[0].state.count, 42);
  expect_law(f.health());
}

TEST(Pipe, ValuesThatNeverComeAreMarkedNotReady) {
  PipeOptions options;
  options.device_timeout = 20ms;
  Fixture f(options);
  RecordBatch late = batch_of(1, 1, 4);
  late.late = std::make_shared<ManualValues>();
  f.submit(std::move(late));
  ASSERT_TRUE(eventually([&] { return f.seen->rows() == 4; }));
  f.pipe->stop(5s);
  EXPECT_NE(f.seen->batches[0].rows[0].key.flags & flag::kNotReady, 0u);
  expect_law(f.health());
}

TEST(Pipe, StopMarksWhatADeviceStillOwes) {
  Fixture f;
  RecordBatch late = batch_of(1, 1, 4);
  late.late = std::make_shared<ManualValues>();
  f.submit(std::move(late));
  const auto begin = std::chrono::steady_clock::now();
  f.pipe->stop(200ms);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 2s);
  EXPECT_EQ(f.seen->rows(), 4u);
  expect_law(f.health());
}

// A disk that stalls: stop() returns within its bound and the rows are counted, not forgotten.
TEST(Pipe, StopIsBoundedWithAStalledSink) {
  Fixture f;
  {
    const std::lock_guard lock(f.seen->mutex);
    f.seen->delay = 3s;
  }
  for (std::uint64_t i = 1; i <= 5; ++i) f.submit(batch_of(i, i * 10, 10));
  const auto begin = std::chrono::steady_clock::now();
  f.pipe->stop(300ms);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 2s);
  const Health health = f.health();
  expect_law(health);
  EXPECT_GT(health.sinks[0].rows_dropped.at("stop_timeout"), 0);
}

// A stalled sink never makes the producer wait: the queue drops and counts instead.
TEST(Pipe, AStalledSinkDropsInsteadOfBlocking) {
  PipeOptions options;
  options.queue_bytes = 32 << 10;
  Fixture f(options);
  {
    const std::lock_guard lock(f.seen->mutex);
    f.seen->delay = 50ms;
  }
  const auto begin = std::chrono::steady_clock::now();
  for (std::uint64_t i = 1; i <= 2000; ++i) f.submit(batch_of(i, i * 10, 10));
  // Waiting for the sink even once per batch would take 100 s.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
  {
    const std::lock_guard lock(f.seen->mutex);
    f.seen->delay = 0ms;
  }
  f.pipe->stop(10s);
  const Health health = f.health();
  expect_law(health);
  EXPECT_GT(health.sinks[0].rows_dropped.at("queue_full"), 0);
  EXPECT_EQ(static_cast<std::int64_t>(f.seen->rows()), health.sinks[0].rows_written);
}

// What waits counts until the sink has it, also what the writer has taken from the queue.
TEST(Pipe, WhatWaitsAndSinceWhen) {
  Fixture f;
  EXPECT_EQ(f.health().queue_bytes, 0);
  EXPECT_EQ(f.health().queue_seconds, 0.0);
  {
    const std::lock_guard lock(f.seen->mutex);
    f.seen->delay = 300ms;
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto sealed = [](RecordBatch batch) {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    batch.time_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
    return batch;
  };
  const RecordBatch batch = sealed(batch_of(1, 0, 10));
  const auto bytes = static_cast<std::int64_t>(batch.bytes());
  f.submit(batch);
  f.submit(sealed(batch_of(2, 10, 10)));
  std::this_thread::sleep_for(100ms);
  const Health now = f.health();
  const auto most = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin);
  EXPECT_GE(now.queue_bytes, bytes);
  EXPECT_GE(now.queue_seconds, 0.1);
  EXPECT_LE(now.queue_seconds, most.count());
  f.pipe->stop(10s);
  EXPECT_EQ(f.health().queue_bytes, 0);
  EXPECT_EQ(f.health().queue_seconds, 0.0);
  EXPECT_GE(f.health().queue_bytes_peak, now.queue_bytes);
}

TEST(Pipe, AlertsCoalescePerSeriesAndAreFlushedAtOnce) {
  Fixture f;
  for (std::uint64_t i = 0; i < 64; ++i) f.submit(batch_of(i + 1, i * 8, 8, 8, true));
  f.pipe->stop(5s);
  // 8 series x 64 repeats: told at 1, 2, 4, ..., 64.
  EXPECT_EQ(f.heard->alerts.size(), 8u * 7u);
  EXPECT_EQ(f.heard->alerts[0].step, 7);
  EXPECT_EQ(f.heard->alerts[0].count, 1);
  EXPECT_NE(f.heard->alerts[0].message.find("1 NaN of 1 elements"), std::string::npos);
  EXPECT_EQ(f.health().alerts, 8);
  std::size_t written = 0;
  for (const RecordBatch& batch : f.seen->batches) written += batch.alerts.size();
  EXPECT_EQ(written, f.heard->alerts.size());
}

// What rules found in batches that a sink could not write comes with the next one it can.
TEST(Pipe, AlertsOfLostBatchesAreWrittenLater) {
  auto second = std::make_shared<Seen>();
  Fixture f({}, second);
  {
    const std::lock_guard lock(f.seen->mutex);
    f.seen->fail_with = "no_space";
  }
  for (std::uint64_t i = 0; i < 64; ++i) f.submit(batch_of(i + 1, i * 8, 8, 8, true));
  ASSERT_TRUE(eventually([&] { return second->rows() == 512; }));
  {
    const std::lock_guard lock(f.seen->mutex);
    f.seen->fail_with.clear();
  }
  f.submit(batch_of(65, 1000, 8));
  f.pipe->stop(5s);
  ASSERT_EQ(f.seen->batches.size(), 1u);
  ASSERT_EQ(f.seen->batches[0].alerts.size(), 8u);  // of each series the last, with its count
  std::set<SeriesId> series;
  for (const Alert& alert : f.seen->batches[0].alerts) {
    series.insert(alert.key.series);
    EXPECT_EQ(alert.count, 64);
    EXPECT_EQ(alert.step, 7);
  }
  EXPECT_EQ(series.size(), 8u);
  expect_law(f.health());
}

TEST(Pipe, WhatIsOwedAtTheEndIsWrittenAlone) {
  auto second = std::make_shared<Seen>();
  Fixture f({}, second);
  {
    const std::lock_guard lock(f.seen->mutex);
    f.seen->fail_with = "no_space";
  }
  RecordBatch batch = batch_of(9, 0, 8, 8, true);
  batch.outcomes.push_back({0, 0, 0, 0, Fate::taken, 1.0});
  f.submit(std::move(batch));
  ASSERT_TRUE(eventually([&] { return second->rows() == 8; }));
  {
    const std::lock_guard lock(f.seen->mutex);
    f.seen->fail_with.clear();
  }
  f.pipe->stop(5s);
  ASSERT_EQ(f.seen->batches.size(), 1u);
  const RecordBatch& last = f.seen->batches[0];
  EXPECT_EQ(last.number, 9u);
  EXPECT_EQ(last.rows.size(), 0u);
  EXPECT_EQ(last.alerts.size(), 8u);
  EXPECT_EQ(last.outcomes.size(), 1u);
  ASSERT_EQ(last.gaps.size(), 1u);
  EXPECT_EQ(last.gaps[0].rows, 8);
  EXPECT_EQ(second->batches.size(), 1u);
  expect_law(f.health());
}

// A sink that never comes back, and alerts that all differ: their number stays, not their memory.
TEST(Pipe, OwedAlertsAreBoundedAndCounted) {
  auto second = std::make_shared<Seen>();
  Fixture f({}, second);
  {
    const std::lock_guard lock(f.seen->mutex);
    f.seen->fail_with = "no_space";
  }
  constexpr int kBatches = 6;
  for (std::uint64_t i = 0; i < kBatches; ++i) {
    RecordBatch batch = batch_of(i + 1, i, 1);
    for (std::uint64_t n = 0; n < 1000; ++n) {
      Alert alert;
      alert.rule = n % 2 == 0 ? "deviation" : "limit";
      alert.key.seq = i * 1000 + n;
      batch.alerts.push_back(alert);
    }
    f.submit(std::move(batch));
  }
  ASSERT_TRUE(eventually([&] { return second->rows() == kBatches; }));
  {
    const std::lock_guard lock(f.seen->mutex);
    f.seen->fail_with.clear();
  }
  f.pipe->stop(5s);
  ASSERT_EQ(f.seen->batches.size(), 1u);
  std::map<std::string, std::int64_t> counts;
  for (const Alert& alert : f.seen->batches[0].alerts) counts[alert.rule] += alert.count;
  EXPECT_EQ(f.seen->batches[0].alerts.size(), 4096u);
  EXPECT_EQ(counts["deviation"], 3000);
  EXPECT_EQ(counts["limit"], 3000);
}

class BrokenRule final : public Rule {
 public:
  std::string_view name() const override { return "broken"; }
  void look(const RecordBatch&, const SeriesTable&, std::vector<Alert>&) override {
    throw std::runtime_error("broken");
  }
};

// Beside one that works: its alerts are all that is told, and the trouble is counted once.
void expect_no_other_is_blinded(std::unique_ptr<Rule> broken) {
  auto seen = std::make_shared<Seen>();
  const testing::Table table(8);
  std::vector<std::unique_ptr<Sink>> sinks;
  sinks.push_back(std::make_unique<RecordingSink>(seen));
  std::vector<std::unique_ptr<Rule>> rules;
  rules.push_back(std::move(broken));
  rules.push_back(std::make_unique<NonFiniteRule>());
  const auto pipe =
      std::make_shared<Pipe>(PipeOptions{}, RunInfo{}, table, std::move(sinks), std::move(rules));
  const auto on_alert = [&](const Alert& one) { table.at(one.key.series); };
  pipe->start({[] {}, [](Alert&) {}, on_alert, [](bool) {}}, nullptr);
  pipe->submit(batch_of(1, 0, 8, 8, true));
  pipe->stop(5s);
  ASSERT_EQ(seen->batches.size(), 1u);
  EXPECT_EQ(seen->batches[0].alerts.size(), 8u);
  Health health;
  pipe->report(health, 8);
  EXPECT_EQ(health.errors, 1);
}

TEST(Pipe, ARuleThatFailsBlindsNoOther) {
  expect_no_other_is_blinded(std::make_unique<BrokenRule>());
}

class LostRule final : public Rule {
 public:
  std::string_view name() const override { return "lost"; }
  void look(const RecordBatch&, const SeriesTable&, std::vector<Alert>& alerts) override {
    Alert alert;
    alert.rule = name();
    alert.key.series = 1'000'000;
    alerts.push_back(alert);
  }
};

TEST(Pipe, AnAlertOfASeriesThatThereIsNotIsLeftOutAndCounted) {
  expect_no_other_is_blinded(std::make_unique<LostRule>());
}

// Counts the batches that it and the rules before it have seen; says so at every batch.
class CountingRule final : public Rule {
 public:
  std::string_view name() const override { return "counting"; }
  void look(const RecordBatch& batch, const SeriesTable&, std::vector<Alert>& alerts) override {
    Alert alert;
    alert.rule = name();
    alert.key = batch.rows.front().key;
    alert.value = ++batches_;
    alerts.push_back(alert);
  }
  void keep_history_of(const Rule& earlier) override {
    if (const auto* known = dynamic_cast<const CountingRule*>(&earlier)) batches_ = known->batches_;
  }

 private:
  int batches_ = 0;
};

TEST(Pipe, RulesThatAreReplacedHandOnTheirHistory) {
  auto seen = std::make_shared<Seen>();
  const testing::Table table(8);
  std::vector<std::unique_ptr<Sink>> sinks;
  sinks.push_back(std::make_unique<RecordingSink>(seen));
  std::vector<std::unique_ptr<Rule>> rules;
  rules.push_back(std::make_unique<NonFiniteRule>());
  rules.push_back(std::make_unique<CountingRule>());
  const auto pipe =
      std::make_shared<Pipe>(PipeOptions{}, RunInfo{}, table, std::move(sinks), std::move(rules));
  pipe->start({[] {}, [](Alert&) {}, [](const Alert&) {}, [](bool) {}}, nullptr);
  std::vector<std::unique_ptr<Rule>> others;
  others.push_back(std::make_unique<CountingRule>());
  pipe->replace_rules(3, 1, std::move(others));
  for (std::uint64_t number = 1; number <= 4; ++number) {
    pipe->submit(batch_of(number, 8 * number, 8, 8));
  }
  pipe->stop(5s);
  ASSERT_EQ(seen->batches.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    ASSERT_EQ(seen->batches[i].alerts.size(), 1u);
    EXPECT_EQ(seen->batches[i].alerts[0].value, static_cast<double>(i + 1));
  }
}

TEST(Pipe, LatestIsTheLastWindowWithAnOutcome) {
  Fixture f;
  for (std::int64_t window = 0; window < 5; ++window) {
    RecordBatch batch = batch_of(static_cast<std::uint64_t>(window) + 1,
                                 static_cast<std::uint64_t>(window) * 10, 3);
    for (Row& row : batch.rows) row.key.window = window;
    if (window < 4) batch.outcomes.push_back({0, window, window, 0, Fate::taken, 1.0});
    f.submit(std::move(batch));
  }
  f.pipe->stop(5s);
  const std::vector<Row> rows = f.pipe->latest();
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].key.window, 3);
}

}  // namespace
}  // namespace trainmon
