// The examples of the C++ reference: series, rows, batches, sinks, rules.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "reference/example.h"
#include "trainmon/error.h"
#include "trainmon/record.h"
#include "trainmon/rule.h"
#include "trainmon/sink.h"

namespace trainmon {
namespace {

using testing::Floats;
using testing::OneSeries;

// example record.h: A series is what rows are rows of
TEST(Reference, Series) {
  Series shard;
  shard.kind = kind::kParamUpdated;
  shard.name = "layers.0.weight";
  shard.space = Space::flat;
  shard.ranges = {Range{0, 500}};
  shard.full_shape = Shape{10, 100};
  shard.replication = Replication::disjoint;
  EXPECT_EQ(space_name(shard.space), "flat");
  EXPECT_EQ(replication_name(shard.replication), "union");
  EXPECT_EQ(fixed_kinds()[0], kind::kGradUnreduced);
  EXPECT_EQ(shape_text(&shard.full_shape), "[10,100]");

  const OneSeries table(shard);
  const SeriesId id = 0;
  Row row;
  row.key.series = id;
  EXPECT_EQ(row.shape, kUnknownShape);
  EXPECT_EQ(table.shape_of(row), nullptr);
  row.shape = kFullShape;
  EXPECT_EQ(*table.shape_of(row), table.at(id).full_shape);
  const ShapeId other = kFirstShape;
  EXPECT_EQ(table.shape(other), nullptr);  // this table keeps no list of shapes
  EXPECT_EQ(table.size(), 1u);
}

// example record.h: The errors of an estimate
TEST(Reference, SampleErrors) {
  RowState state = measure(Floats({3, -4}).view());
  state.mark_estimate();
  const RowSample sample{.seq = 7, .elements = 1, .sum_error = 0.5, .sum_sq_error = 2.0};
  EXPECT_EQ(mean_error(state, sample), 0.25);  // of two elements
  EXPECT_EQ(norm_error(state, sample), 0.2);   // 2 / (2 * 5)
  RecordBatch batch;
  batch.samples.push_back(sample);
}

// example record.h: A batch and what it carries
TEST(Reference, Batch) {
  RecordBatch batch;
  EXPECT_TRUE(batch.empty());
  batch.moment = Moment::after_step;
  Row row;
  row.key = RowKey{.series = 0, .flags = flag::kClipBefore, .window = 3, .seq = 7};
  row.state = measure(Floats({1, 2}).view());
  batch.rows.push_back(row);
  batch.checks.push_back(RowCheck{.seq = 7, .fingerprint = 42});
  batch.outcomes.push_back(Outcome{.optimizer = 0, .window = 3, .step = 3, .fate = Fate::taken});
  batch.scalars.push_back(Scalar{.name = "loss", .window = 3, .seq = 8, .value = 0.5});
  Payload text;
  text.type = PayloadType::text;
  text.key = RowKey{.window = 3, .seq = 9};
  batch.payloads.push_back(text);
  DeclaredValue rate;
  rate.name = "lr";
  rate.number = 0.1;
  batch.declared.push_back(Declared{.window = 3, .seq = 10, .values = {rate}});
  EXPECT_EQ(batch.row_count(), 2);  // a row and a payload
  EXPECT_EQ(seq_range(batch), (std::pair<std::uint64_t, std::uint64_t>{7, 9}));
  EXPECT_GT(batch.bytes(), sizeof(Row));
  EXPECT_EQ(moment_name(batch.moment), "after_step");
  EXPECT_EQ(fate_name(Fate::skipped), "skipped");
  EXPECT_EQ(declared_type_name(rate.type), "number");
}

// example record.h: Gaps of one reason are one
TEST(Reference, Gaps) {
  std::vector<Gap> gaps;
  add_gap(gaps, Gap{"queue_full", 2, 10, 11});
  add_gap(gaps, Gap{"queue_full", 3, 20, 22});
  ASSERT_EQ(gaps.size(), 1u);
  EXPECT_EQ(gaps[0].rows, 5);
  EXPECT_EQ(gaps[0].first_seq, 10u);
  EXPECT_EQ(gaps[0].last_seq, 22u);
}

// example record.h: Values that come later
TEST(Reference, LateValues) {
  struct Answer final : LateValues {
    bool ready() const noexcept override { return true; }
    bool lost() const noexcept override { return false; }  // as the base class says
    void fill(RecordBatch& batch) noexcept override { batch.rows[0].state.count = 1; }
  };
  RecordBatch batch;
  batch.rows.resize(1);
  batch.late = std::make_shared<Answer>();
  EXPECT_FALSE(batch.late->lost());
  if (batch.late->ready()) batch.late->fill(batch);  // as the writer thread does
  EXPECT_EQ(batch.rows[0].state.count, 1);
}

// example sink.h: A sink that counts
TEST(Reference, Sink) {
  struct Counter final : Sink {
    std::string_view name() const override { return "counter"; }
    void open(const RunInfo& run, const SeriesTable&) override { rank = run.rank; }
    void write(const RecordBatch& batch) override {
      if (batch.row_count() > 1) throw SinkError("no_space", "counter: there is room for one row");
      rows += batch.row_count();
    }
    void flush() override {}
    void close() override {}
    std::map<std::string, std::int64_t> rows_left_out() const override { return {}; }
    std::int64_t rows_deleted() const override { return 0; }
    std::int64_t rows_expired() const override { return 0; }
    int rank = -1;
    std::int64_t rows = 0;
  };
  Counter sink;
  RunInfo run;
  run.rank = 2;
  sink.open(run, OneSeries(Series()));
  RecordBatch batch;
  batch.rows.resize(1);
  sink.write(batch);
  sink.flush();
  sink.close();
  EXPECT_EQ(sink.name(), "counter");
  EXPECT_EQ(sink.rank, 2);
  EXPECT_EQ(sink.rows, 1);
  EXPECT_TRUE(sink.rows_left_out().empty());
  EXPECT_EQ(sink.rows_deleted() + sink.rows_expired(), 0);
}

// example error.h: What is thrown
TEST(Reference, Errors) {
  const SinkError full("no_space", "log: no space left on device");
  EXPECT_EQ(full.reason(), "no_space");
  const ConfigError wrong({"every = 0: must be an integer of at least 1, or null"});
  EXPECT_EQ(wrong.faults().size(), 1u);
}

// example rule.h: A rule of your own
TEST(Reference, Rule) {
  struct ManyZeros final : Rule {
    std::string_view name() const override { return "many_zeros"; }
    void look(const RecordBatch& batch, const SeriesTable& series,
              std::vector<Alert>& alerts) override {
      for (const Row& row : batch.rows) {
        if (2 * row.state.zeros <= row.state.count) continue;
        Alert alert;
        alert.rule = name();
        alert.key = row.key;
        alert.message = series.at(row.key.series).name + " is mostly zeros";
        alerts.push_back(alert);
      }
    }
    void keep_history_of(const Rule&) override {}  // it remembers nothing
  };
  Series series;
  series.name = "head.weight";
  RecordBatch batch;
  batch.rows.resize(1);
  batch.rows[0].state = measure(Floats({0, 0, 1}).view());
  ManyZeros rule;
  rule.keep_history_of(ManyZeros());
  std::vector<Alert> alerts;
  rule.look(batch, OneSeries(series), alerts);
  ASSERT_EQ(alerts.size(), 1u);
  EXPECT_EQ(alerts[0].message, "head.weight is mostly zeros");
}

// example rule.h: Rules of statistics
TEST(Reference, RulesOfStatistics) {
  DeviationRule deviation;
  deviation.deviation = 0.5;
  deviation.stats = {Stat::norm};
  deviation.warmup = 2;
  LimitRule limit;
  limit.limit = 100.0;
  limit.stats = {Stat::absmax};
  Telling each;
  each.every = true;
  const std::unique_ptr<Rule> rules[] = {
      make_deviation_rule(deviation, each), make_limit_rule(limit, each),
      make_first_of_rule({StatisticRule(limit), StatisticRule(deviation)}, each)};
  std::vector<std::string> told;
  for (const std::unique_ptr<Rule>& rule : rules) {
    std::vector<Alert> alerts;
    for (const float value : {1.0f, 1.0f, 1000.0f}) {
      RecordBatch batch;
      batch.rows.resize(1);
      batch.rows[0].state = measure(Floats({value}).view());
      rule->look(batch, OneSeries(Series()), alerts);
    }
    for (const Alert& alert : alerts) told.push_back(alert.rule + " " + alert.stat);
  }
  EXPECT_EQ(told, (std::vector<std::string>{"deviation norm", "limit absmax", "limit absmax",
                                            "deviation norm"}));
}

}  // namespace
}  // namespace trainmon
