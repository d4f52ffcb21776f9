// The two files of ColossalAIMonitor, read back as text: columns, steps, what has no place, faults.
#include "sinks/grad_stats.h"

#include <gtest/gtest.h>

#include <map>

#include "base/failpoint.h"
#include "file_content.h"
#include "records.h"
#include "scratch.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

class GradStatsSink : public ::testing::Test {
 protected:
  GradStatsSink() {
    options.local = scratch.path() / "local.csv";
    options.global = scratch.path() / "global.csv";
    options.stats = {Stat::norm, Stat::mean, Stat::max, Stat::min};
    micro = add("grad_micro", "module.fc.weight");
    reduced = add("grad_reduced", "module.fc.weight");
    odd = add("grad_reduced", "a \"b\",\r\nc");
    weight = add("param_origin", "module.fc.weight");
  }
  void TearDown() override { set_failpoints(""); }

  SeriesId add(const char* kind, const char* name) {
    Series series;
    series.kind = kind;
    series.name = name;
    return table.add(series);
  }
  std::unique_ptr<Sink> opened(int rank = 3) {
    auto sink = make_grad_stats_sink(options);
    RunInfo run;
    run.directory = scratch.path();
    run.rank = rank;
    run.start_steps = [] { return std::vector<std::int64_t>{0}; };
    sink->open(run, table);
    return sink;
  }
  // Of the elements 3 and -4.
  Row row(SeriesId series, std::int64_t window, std::uint32_t flags = 0) {
    Row made;
    made.key = {series, flags, window, 0, 0, seq++};
    RowState& s = made.state;
    s.count = 2;
    s.sum = -1;
    s.mean = -0.5;
    s.sum_sq = 25;
    s.min = -4;
    s.max = 3;
    s.absmax = 4;
    return made;
  }
  static Outcome taken(std::int64_t window, std::int64_t step) {
    return {0, window, step, 0, Fate::taken, 1.0};
  }
  static RecordBatch batch(std::vector<Row> rows, std::vector<Outcome> outcomes = {}) {
    RecordBatch made;
    made.rows = std::move(rows);
    made.outcomes = std::move(outcomes);
    return made;
  }
  std::string local() const { return content(options.local); }
  std::string global() const { return content(options.global); }

  Scratch scratch;
  GradStatsOptions options;
  ListedSeries table;
  SeriesId micro = 0, reduced = 0, odd = 0, weight = 0;
  std::uint64_t seq = 1;
  const std::string head = "step,rank,param_name,norm,mean,max,min\r\n";
  static std::string line(int step, const std::string& name = "module.fc.weight") {
    return std::to_string(step) + ",3," + name + ",5,-0.5,3,-4\r\n";
  }
};

TEST_F(GradStatsSink, BothFilesHaveTheSameStep) {
  auto sink = opened();
  EXPECT_EQ(local(), head);
  EXPECT_EQ(global(), head);
  sink->write(batch({row(micro, 0), row(micro, 0)}));
  EXPECT_EQ(local(), head);
  sink->write(batch({row(reduced, 0)}, {taken(0, 0)}));
  EXPECT_EQ(local(), head + line(0) + line(0));
  EXPECT_EQ(global(), head + line(0));
  sink->write(batch({row(micro, 1), row(reduced, 1)}, {taken(1, 1)}));
  EXPECT_EQ(local(), head + line(0) + line(0) + line(1));
  EXPECT_EQ(global(), head + line(0) + line(1));
  EXPECT_TRUE(sink->rows_left_out().empty());
}

TEST_F(GradStatsSink, ColumnsAndNames) {
  options.stats = {Stat::mean, Stat::min};
  auto sink = opened(12);
  RecordBatch one = batch({row(odd, 0)}, {taken(0, 0)});
  one.rows.push_back(row(reduced, 0));
  one.rows.back().state.nans = 1;
  one.rows.back().state.count = 3;
  sink->write(one);
  EXPECT_EQ(global(),
            "step,rank,param_name,mean,min\r\n"
            "0,12,\"a \"\"b\"\",\\x0d\\x0ac\",-0.5,-4\r\n"
            "0,12,module.fc.weight,nan,nan\r\n");
}

TEST_F(GradStatsSink, WriteInterval) {
  options.write_interval = 3;
  auto sink = opened();
  for (std::int64_t step = 0; step < 5; ++step) {
    sink->write(batch({row(reduced, step)}, {taken(step, step)}));
    EXPECT_EQ(global() != head, step >= 2) << step;
  }
  EXPECT_EQ(global(), head + line(0) + line(1) + line(2));
  sink->flush();
  EXPECT_EQ(global(), head + line(0) + line(1) + line(2) + line(3) + line(4));
}

TEST_F(GradStatsSink, WhatHasNoPlaceIsCounted) {
  auto sink = opened();
  RecordBatch mixed = batch({row(weight, 0), row(micro, 0, flag::kNotReady), row(micro, 0)});
  mixed.payloads.push_back({PayloadType::text, mixed.rows[0].key, {}});
  sink->write(mixed);
  sink->close();
  const std::map<std::string, std::int64_t> left = {{"no_file_for_kind", 2}, {"not_ready", 1}};
  EXPECT_EQ(sink->rows_left_out(), left);
  EXPECT_EQ(local(), head + line(0));
}

TEST_F(GradStatsSink, ABatchThatCannotBeWrittenLeavesNothing) {
  auto sink = opened();
  sink->write(batch({row(micro, 0)}));
  for (const char* fault : {"file.write=errno:28", "file.write=errno:28@2", "file.open=errno:24"}) {
    set_failpoints(fault);
    EXPECT_THROW(sink->write(batch({row(reduced, 0), row(micro, 0)}, {taken(0, 0)})), SinkError);
    set_failpoints("");
    EXPECT_EQ(local(), head);
    EXPECT_EQ(global(), head);
  }
  sink->write(batch({row(reduced, 0)}, {taken(0, 0)}));
  EXPECT_EQ(local(), head + line(0));
  EXPECT_EQ(global(), head + line(0));
  // What was taken and can never be written counts as dropped.
  sink->write(batch({row(micro, 1), row(micro, 1)}));
  set_failpoints("file.write=errno:28+");
  EXPECT_THROW(sink->close(), SinkError);
  EXPECT_EQ(sink->rows_left_out().at("not_written"), 2);
}

TEST_F(GradStatsSink, AFolderThatVanishesIsMadeAgain) {
  options.local = scratch.path() / "out" / "local.csv";
  options.global = scratch.path() / "out" / "global.csv";
  auto sink = opened();
  fs::remove_all(scratch.path() / "out");
  sink->write(batch({row(micro, 0)}, {taken(0, 0)}));
  EXPECT_EQ(local(), head + line(0));
  EXPECT_EQ(global(), head);
}

TEST_F(GradStatsSink, AnotherStartAppendsAndOtherColumnsAreRefused) {
  opened()->write(batch({row(micro, 0)}, {taken(0, 0)}));
  opened()->write(batch({row(micro, 0)}, {taken(0, 0)}));
  EXPECT_EQ(local(), head + line(0) + line(0));
  options.stats = {Stat::norm};
  EXPECT_EQ(reason_of([&] { (void)make_grad_stats_sink(options); }), "other_columns");
  EXPECT_EQ(local(), head + line(0) + line(0));
}

}  // namespace
}  // namespace trainmon
