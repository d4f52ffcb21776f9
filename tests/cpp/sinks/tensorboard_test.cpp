// The contract of Sink for event files: a batch that was refused is nowhere, all others are there
// once the disk works again, and what is not is counted. Read by a decoder of the test's own.
#include <gtest/gtest.h>

#include <cerrno>
#include <cmath>
#include <map>
#include <set>

#include "base/failpoint.h"
#include "base/file.h"
#include "base/log.h"
#include "event_reader.h"
#include "records.h"
#include "scratch.h"
#include "sinks/sinks.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

class Tensorboard : public testing::Test {
 protected:
  Tensorboard() : directory_(scratch_.path() / "rank_00000" / "restart_0000") {
    before_ = set_log_hook([](std::string_view) {});
    Series series;
    series.kind = "grad_reduced";
    for (const char* name : {"a", "b"}) {
      series.name = name;
      ids_.push_back(series_.add(series));
    }
  }
  ~Tensorboard() override { set_log_hook(before_); }

  void open(std::size_t tags = 100) {
    make_directories(directory_);
    sink_ = make_tensorboard_sink(tags);
    RunInfo run;
    run.directory = directory_;
    sink_->open(run, series_);
  }

  Row row(std::size_t series, std::int64_t window, double value) {
    Row made;
    made.key.series = ids_[series];
    made.key.window = window;
    made.key.seq = ++seq_;
    made.state.count = 1;
    made.state.sum = made.state.mean = made.state.min = made.state.max = value;
    made.state.absmax = std::fabs(value);
    made.state.sum_sq = value * value;
    return made;
  }

  // One step: a row of each series whose value is the step's number, and the outcome.
  RecordBatch batch(std::int64_t window, Fate fate = Fate::taken) {
    RecordBatch made;
    made.number = static_cast<std::uint64_t>(window);
    made.time_ns = window;
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      made.rows.push_back(row(i, window, static_cast<double>(window)));
    }
    made.outcomes.push_back({0, window, window, 0, fate, 1.0});
    return made;
  }

  // The reason a call was refused, "" when it was not.
  template <typename Call>
  static std::string refused(const Call& call) {
    try {
      call();
    } catch (const SinkError& error) {
      return error.reason();
    }
    return "";
  }

  fs::path events() const { return scratch_.path() / "tensorboard" / "rank_0"; }
  std::vector<Point> curve(const std::string& tag) const { return read_curves(events())[tag]; }

  // Exactly these windows, each value right, whatever the order and number of points of one step.
  void expect_windows(const std::set<std::int64_t>& windows) {
    const auto curves = read_curves(events());
    for (const char* tag : {"mean/grad_reduced/a", "max/grad_reduced/b"}) {
      std::set<std::int64_t> found;
      const auto known = curves.find(tag);
      if (known != curves.end()) {
        for (const Point& point : known->second) {
          EXPECT_EQ(point.value, static_cast<float>(point.step));
          found.insert(point.step);
        }
      }
      EXPECT_EQ(found, windows) << tag;
    }
  }

  Scratch scratch_;
  const fs::path directory_;
  ListedSeries series_;
  std::vector<SeriesId> ids_;
  std::unique_ptr<Sink> sink_;
  std::uint64_t seq_ = 0;
  LogHook before_ = nullptr;
};

TEST_F(Tensorboard, OnePointPerStep) {
  open();
  for (int i = 0; i < 4; ++i) sink_->write(batch(i));
  sink_->close();
  const std::vector<Point> points = curve("norm/grad_reduced/a");
  ASSERT_EQ(points.size(), 4u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(points[static_cast<std::size_t>(i)].step, i);
  EXPECT_TRUE(sink_->rows_left_out().empty());
}

// A checkpoint may be loaded before the first step: nothing says which step it is until it ends.
TEST_F(Tensorboard, TheFirstStepIsNotWrittenBeforeItIsKnown) {
  open();
  RecordBatch early = batch(0);
  early.outcomes.clear();
  sink_->write(early);
  sink_->flush();
  EXPECT_TRUE(curve("mean/grad_reduced/a").empty());
  RecordBatch end;
  end.outcomes.push_back({0, 0, 700, 0, Fate::taken, 1.0});
  sink_->write(end);
  sink_->flush();
  ASSERT_EQ(curve("mean/grad_reduced/a").size(), 1u);
  EXPECT_EQ(curve("mean/grad_reduced/a").front().step, 700);
}

TEST_F(Tensorboard, AStepUnderWayIsWrittenAtAFlush) {
  open();
  sink_->write(batch(0));
  RecordBatch half = batch(1);
  half.outcomes.clear();
  sink_->write(half);
  sink_->flush();
  expect_windows({0, 1});
  sink_->flush();
  EXPECT_EQ(curve("mean/grad_reduced/a").size(), 2u);  // once is enough
}

// Of an optimizer that has no rows, too; texts and what is not known have no curve.
TEST_F(Tensorboard, DeclaredNumbersAreCurves) {
  using Type = DeclaredValue::Type;
  open();
  for (int i = 0; i < 4; ++i) {
    RecordBatch made = batch(i);
    made.outcomes.push_back({1, i, 50 + i, 0, Fate::taken, 1.0});
    for (const std::int32_t optimizer : {0, 1}) {
      Declared group;
      group.optimizer = optimizer;
      group.group = 3;
      group.window = i;
      group.values = {{"lr", Type::number, 0.5 * i, ""}, {"foreach", Type::text, 0.0, "None"}};
      if (i % 2 == 1) made.declared.push_back(group);
    }
    sink_->write(made);
  }
  sink_->close();
  auto curves = read_curves(events());
  for (const auto& [tag, first] : std::map<std::string, std::int64_t>{
           {"declared/group_3/lr", 0}, {"declared/optimizer_1/group_3/lr", 50}}) {
    const std::vector<Point> points = curves[tag];
    ASSERT_EQ(points.size(), 2u) << tag;
    EXPECT_EQ(points[0].step, first + 1);
    EXPECT_EQ(points[0].value, 0.5f);
    EXPECT_EQ(points[1].step, first + 3);
    EXPECT_EQ(points[1].value, 1.5f);
  }
  EXPECT_FALSE(curves.contains("declared/group_3/foreach"));
}

// Many groups do not take the room of series: 320 of the curves are asked for, 16 are the share.
TEST_F(Tensorboard, DeclaredValuesHaveAShareWhereSeriesDoNotFit) {
  Series series;
  series.kind = "grad_reduced";
  for (int i = 0; i < 100; ++i) {
    series.name = "w" + std::to_string(i);
    ids_.push_back(series_.add(series));
  }
  open(256);
  RecordBatch made = batch(0);
  for (std::int32_t group = 0; group < 320; ++group) {
    made.declared.push_back({0, group, 0, 0, {{"lr", DeclaredValue::Type::number, 1.0, ""}}});
  }
  sink_->write(made);
  sink_->close();
  EXPECT_TRUE(sink_->rows_left_out().empty());
  std::size_t declared = 0;
  const auto curves = read_curves(events());
  for (const auto& [tag, points] : curves) declared += tag.starts_with("declared/") ? 1 : 0;
  EXPECT_EQ(declared, 16u);
  EXPECT_LE(curves.size(), 256u);
}

TEST_F(Tensorboard, ARetryIsAnotherPointOfTheSameStep) {
  open();
  sink_->write(batch(0));
  RecordBatch skipped = batch(1, Fate::skipped);
  sink_->write(skipped);
  RecordBatch again = batch(2);
  again.outcomes[0] = {0, 2, 1, 1, Fate::taken, 1.0};
  sink_->write(again);
  sink_->close();
  const std::vector<Point> points = curve("mean/grad_reduced/a");
  ASSERT_EQ(points.size(), 3u);
  EXPECT_EQ(points[1].step, 1);
  EXPECT_EQ(points[2].step, 1);
  EXPECT_EQ(points[2].value, 2.0f);
}

// Rows of a window whose outcome came long ago, as of a device that is far behind.
TEST_F(Tensorboard, AWindowRemembersItsStep) {
  open();
  RecordBatch first = batch(0);
  first.outcomes[0].step = 500;
  sink_->write(first);
  for (int i = 1; i < 100; ++i) {
    RecordBatch outcome;
    outcome.outcomes.push_back({0, i, 500 + i, 0, Fate::taken, 1.0});
    sink_->write(outcome);
  }
  sink_->flush();
  RecordBatch late = batch(0);
  late.outcomes.clear();
  sink_->write(late);
  sink_->flush();
  const std::vector<Point> points = curve("mean/grad_reduced/a");
  ASSERT_EQ(points.size(), 2u);
  EXPECT_EQ(points[0].step, 500);
  EXPECT_EQ(points[1].step, 500);
}

TEST_F(Tensorboard, ValuesThatNeverCameAreLeftOut) {
  open();
  RecordBatch late = batch(0);
  late.rows[0].key.flags |= flag::kNotReady;
  sink_->write(late);
  sink_->close();
  EXPECT_EQ(sink_->rows_left_out().at("not_ready"), 1);
  EXPECT_TRUE(curve("mean/grad_reduced/a").empty());
  EXPECT_EQ(curve("mean/grad_reduced/b").size(), 1u);
}

TEST_F(Tensorboard, WithoutRoomForATagRowsAreCounted) {
  open(3);
  for (int i = 0; i < 3; ++i) sink_->write(batch(i));
  sink_->close();
  EXPECT_EQ(sink_->rows_left_out().at("tag_budget"), 6);
}

TEST_F(Tensorboard, WhatHasNoPlaceIsCounted) {
  open();
  RecordBatch with_digest = batch(0);
  Payload digest;
  digest.type = PayloadType::digest;
  digest.key = with_digest.rows[0].key;
  with_digest.payloads.push_back(digest);
  sink_->write(with_digest);
  sink_->close();
  EXPECT_EQ(sink_->rows_left_out().at("no_place"), 1);
}

TEST_F(Tensorboard, ADeletedFileIsNoticedAndItsRowsAreCounted) {
  open();
  for (int i = 0; i < 3; ++i) sink_->write(batch(i));
  sink_->flush();
  fs::remove_all(scratch_.path() / "tensorboard");
  for (int i = 3; i < 5; ++i) sink_->write(batch(i));
  sink_->close();
  EXPECT_EQ(sink_->rows_left_out().at("deleted"), 6);
  expect_windows({3, 4});
}

TEST_F(Tensorboard, AGivenDirectoryHoldsTheFileItself) {
  sink_ = make_tensorboard_sink(100);
  RunInfo run;
  run.directory = scratch_.path() / "given";
  make_directories(run.directory);
  sink_->open(run, series_);
  sink_->write(batch(0));
  sink_->close();
  EXPECT_EQ(read_curves(run.directory)["mean/grad_reduced/a"].size(), 1u);
}

#if defined(TRAINMON_FAILPOINTS)

TEST_F(Tensorboard, EveryErrorAtEveryWrite) {
  const std::vector<std::pair<int, std::string>> errors = {
      {ENOSPC, "no_space"}, {EIO, "io_error"}, {EROFS, "read_only"}, {EFBIG, "file_limit"}};
  for (const auto& [error, reason] : errors) {
    for (const char* debris : {"", ";event_file.truncate=errno:5@1+"}) {
      for (int hit = 1; hit <= 6; ++hit) {
        fs::remove_all(scratch_.path() / "tensorboard");
        open();
        // Some bytes reach the file, then errors, for four writes.
        std::string spec = "file.write=short:50@" + std::to_string(hit) + debris;
        for (int i = 1; i <= 4; ++i) {
          spec += ";file.write=errno:" + std::to_string(error) + "@" + std::to_string(hit + i);
        }
        set_failpoints(spec);
        std::set<std::int64_t> taken;
        int times = 0;
        for (int i = 0; i < 15; ++i) {
          const std::string got = refused([&] { sink_->write(batch(i)); });
          if (got.empty()) {
            taken.insert(i);
          } else {
            EXPECT_EQ(got, reason);
            ++times;
          }
        }
        set_failpoints("");
        EXPECT_GE(times, 1);
        sink_->close();
        EXPECT_TRUE(sink_->rows_left_out().empty());
        expect_windows(taken);
        if (HasFailure()) FAIL() << spec;
      }
    }
  }
}

TEST_F(Tensorboard, WhatCannotBeWrittenAtTheEndIsCounted) {
  open();
  for (int i = 0; i < 3; ++i) sink_->write(batch(i));
  set_failpoints("file.write=errno:28@1+");
  EXPECT_EQ(refused([&] { sink_->close(); }), "no_space");
  set_failpoints("");
  EXPECT_EQ(sink_->rows_left_out().at("not_written_at_close"), 2);
  expect_windows({0, 1});
}

#endif

}  // namespace
}  // namespace trainmon
