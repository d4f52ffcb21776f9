// The sinks csv and sqlite under the contract of Sink: what they took is read back to the last bit,
// a batch they refused never is, and rows lost later are counted.
#include "tables.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <csignal>
#include <set>

#include "base/failpoint.h"
#include "base/file.h"
#include "base/log.h"
#include "model/histogram.h"
#include "records.h"
#include "scratch.h"
#include "sinks/sinks.h"
#include "sqlite_faults.h"
#include "trainmon/error.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

std::string said;  // log lines of the test

class Tables : public testing::TestWithParam<const char*> {
 protected:
  Tables() : random_(1), directory_(scratch_.path() / "rank_00000" / "restart_0000") {
    said.clear();
    before_ = set_log_hook([](std::string_view line) { said += std::string(line) + "\n"; });
    for (int i = 0; i < 20; ++i) series_.add(random_.series());
    for (const Shape& shape : {Shape{}, Shape{0, 3}, Shape{12, 5, 1}}) series_.add(shape);
  }
  ~Tables() override {
    set_log_hook(before_);
#if defined(TRAINMON_FAILPOINTS)
    set_failpoints("");
#endif
  }

  bool is_csv() const {
    return std::string_view(GetParam()) == "csv";
  }

  void open(std::size_t segment_bytes = 1 << 20) {
    make_directories(directory_);
    sink_ = is_csv() ? make_csv_sink(segment_bytes) : make_sqlite_sink();
    RunInfo run;
    run.directory = directory_;
    run.rank = 3;
    run.restart = 2;
    run.run_id = "tables";
    sink_->open(run, series_);
  }

  void start_anew() {
    sink_.reset();
    fs::remove_all(scratch_.path() / "rank_00000");
    taken_.clear();
    next_number_ = 0;
    open(4000);
  }

  // The reason it was refused, "" when it was taken.
  std::string write() {
    RecordBatch batch = random_.batch(next_number_++, series_.size());
    for (Row& row : batch.rows) row.shape = static_cast<ShapeId>(random_.below(5));
    try {
      sink_->write(batch);
    } catch (const SinkError& error) {
      return error.reason();
    }
    taken_.push_back(batch);
    return "";
  }
  std::string flush() {
    try {
      sink_->flush();
    } catch (const SinkError& error) {
      return error.reason();
    }
    return "";
  }
  void close() {
    try {
      sink_->close();
    } catch (const SinkError&) {
    }
  }

  std::vector<TextRow> rows() const {
    if (is_csv()) return csv_rows(directory_, "rows-");
    return sqlite_rows(directory_ / "stats.db", "SELECT * FROM stats");
  }
  std::vector<TextRow> table(const std::string& name) const {
    if (is_csv()) return csv_rows(directory_, name);
    return sqlite_rows(directory_ / "stats.db", "SELECT * FROM " + name);
  }
  // Each value of each batch that was taken, once.
  void expect_declared() const {
    std::map<std::string, TextRow> found;
    for (TextRow& row : table("declared")) {
      const std::string name = row.at("name");
      EXPECT_TRUE(found.emplace(name, std::move(row)).second) << name << " is there twice";
    }
    std::size_t values = 0;
    for (const RecordBatch& batch : taken_) {
      for (const Declared& group : batch.declared) {
        for (const DeclaredValue& value : group.values) {
          ++values;
          const auto at = found.find(value.name);
          ASSERT_NE(at, found.end());
          expect_value(at->second, group, value);
        }
      }
    }
    EXPECT_EQ(found.size(), values);
  }
  void expect_value(const TextRow& row, const Declared& group, const DeclaredValue& value) const {
    EXPECT_EQ(row.at("restart"), "2");
    EXPECT_EQ(row.at("rank"), "3");
    EXPECT_EQ(row.at("optimizer"), std::to_string(group.optimizer));
    EXPECT_EQ(row.at("param_group"), std::to_string(group.group));
    EXPECT_EQ(row.at("window"), std::to_string(group.window));
    switch (value.type) {
      case DeclaredValue::Type::number:
        EXPECT_EQ(row.at("type"), "number");
        expect_same(row.at("value"), value.number, "value");
        break;
      case DeclaredValue::Type::text:
        EXPECT_EQ(row.at("type"), "text");
        EXPECT_EQ(row.at("value"), value.text);
        break;
      case DeclaredValue::Type::unknown:
        EXPECT_EQ(row.at("type"), "unknown");
        EXPECT_EQ(row.at("value"), is_csv() ? "" : "NULL");
    }
  }
  std::int64_t left_out() const {
    std::int64_t rows = 0;
    for (const auto& [reason, count] : sink_->rows_left_out()) rows += count;
    return rows;
  }

  void expect_same(const std::string& cell, double value, const std::string& what) const {
    if (std::isnan(value)) {
      EXPECT_EQ(cell, is_csv() ? "nan" : "NULL") << what;
    } else {
      EXPECT_EQ(std::strtod(cell.c_str(), nullptr), value) << what << " is " << cell;
    }
  }

  void expect_row(const TextRow& found, const Row& row) const {
    const Series& series = series_.at(row.key.series);
    EXPECT_EQ(found.at("restart"), "2");
    EXPECT_EQ(found.at("rank"), "3");
    EXPECT_EQ(found.at("kind"), series.kind);
    EXPECT_EQ(found.at("name"), series.name);
    EXPECT_EQ(found.at("element"), series.element);
    EXPECT_EQ(found.at("chunk"), std::to_string(series.chunk));
    EXPECT_EQ(found.at("optimizer"), std::to_string(series.optimizer));
    EXPECT_EQ(found.at("dtype"), dtype_name(series.dtype));
    EXPECT_EQ(found.at("replication"), replication_name(series.replication));
    const Shape* shape = series_.shape_of(row);
    const std::string unknown = is_csv() ? "" : "NULL";
    EXPECT_EQ(found.at("shape"), shape == nullptr ? unknown : shape_text(shape));
    EXPECT_EQ(found.at("flags"), std::to_string(row.key.flags));
    EXPECT_EQ(found.at("window"), std::to_string(row.key.window));
    EXPECT_EQ(found.at("accum"), std::to_string(row.key.accum));
    EXPECT_EQ(found.at("call"), std::to_string(row.key.call));
    for (const StatDefinition& statistic : stat_table()) {
      const std::string name(statistic.name);
      if (is_told(statistic.stat, row.state)) {
        expect_same(found.at(name), derive(statistic.stat, row.state), name);
      } else {  // an estimate does not tell it
        EXPECT_EQ(found.at(name), unknown) << name;
      }
    }
  }

  // Every batch is there as a whole or not at all; those that are not are counted as left out.
  void expect_law() {
    std::map<std::string, TextRow> found;
    for (TextRow& row : rows()) {
      const std::string seq = row.at("seq");
      EXPECT_TRUE(found.emplace(seq, std::move(row)).second) << "row " << seq << " is there twice";
    }
    std::set<std::string> scalars, payloads;
    for (const TextRow& row : table("scalars")) scalars.insert(row.at("seq"));
    for (const TextRow& row : table("payloads")) payloads.insert(row.at("seq"));
    const std::size_t total = found.size() + payloads.size();
    std::int64_t lost = 0;
    std::size_t read = 0;
    for (const RecordBatch& batch : taken_) {
      std::size_t there = 0;
      for (const Row& row : batch.rows) {
        const auto at = found.find(std::to_string(row.key.seq));
        if (at == found.end()) continue;
        ++there;
        expect_row(at->second, row);
      }
      for (const Payload& payload : batch.payloads) {
        there += payloads.count(std::to_string(payload.key.seq));
      }
      const bool is_there = there > 0 || batch.row_count() == 0;
      EXPECT_TRUE(there == 0 || there == static_cast<std::size_t>(batch.row_count()))
          << there << " of " << batch.row_count() << " rows of a batch";
      if (!is_there) lost += batch.row_count();
      read += there;
      for (const Scalar& scalar : batch.scalars) {
        if (is_there && left_out() == 0) {
          EXPECT_EQ(scalars.count(std::to_string(scalar.seq)), 1u);
        }
      }
    }
    EXPECT_EQ(read, total) << "rows of batches that were refused";
    EXPECT_EQ(lost, left_out());
    if (!is_csv()) {
      const auto check = sqlite_rows(directory_ / "stats.db", "PRAGMA integrity_check");
      ASSERT_EQ(check.size(), 1u);
      EXPECT_EQ(check[0].at("integrity_check"), "ok");
    }
  }

  Scratch scratch_;
  RandomRecords random_;
  const fs::path directory_;
  ListedSeries series_;
  std::unique_ptr<Sink> sink_;
  std::vector<RecordBatch> taken_;
  std::uint64_t next_number_ = 0;
  LogHook before_ = nullptr;
};

INSTANTIATE_TEST_SUITE_P(Sinks, Tables, testing::Values("csv", "sqlite"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Tables, EveryRecordIsReadBack) {
  open(20000);
  for (int i = 0; i < 80; ++i) {
    ASSERT_EQ(write(), "");
    ASSERT_EQ(i % 7 == 0 ? flush() : "", "");
  }
  close();
  expect_law();
  EXPECT_EQ(left_out(), 0);
  std::map<std::string, Outcome> outcomes;
  std::size_t gaps = 0, alerts = 0, payload_count = 0, scalar_count = 0;
  for (const RecordBatch& batch : taken_) {
    for (const Outcome& one : batch.outcomes) {
      outcomes[std::to_string(one.optimizer) + " " + std::to_string(one.window)] = one;
    }
    gaps += batch.gaps.size();
    alerts += batch.alerts.size();
    payload_count += batch.payloads.size();
    scalar_count += batch.scalars.size();
  }
  std::map<std::string, TextRow> found;
  for (const TextRow& row : table("outcomes")) {
    found[row.at("optimizer") + " " + row.at("window")] = row;
  }
  EXPECT_EQ(found.size(), outcomes.size());
  for (const auto& [key, one] : outcomes) {
    const TextRow& row = found.at(key);
    EXPECT_EQ(row.at("step"), std::to_string(one.step));
    EXPECT_EQ(row.at("attempt"), std::to_string(one.attempt));
    EXPECT_EQ(row.at("fate"), fate_name(one.fate));
    expect_same(row.at("loss_scale"), one.loss_scale, "loss_scale");
  }
  expect_declared();
  EXPECT_EQ(table("gaps").size(), gaps);
  EXPECT_EQ(table("payloads").size(), payload_count);
  EXPECT_EQ(table("alerts").size(), alerts);
  std::map<std::string, TextRow> scalars;
  for (const TextRow& row : table("scalars")) scalars[row.at("seq")] = row;
  EXPECT_EQ(scalars.size(), scalar_count);
  for (const RecordBatch& batch : taken_) {
    for (const Scalar& one : batch.scalars) {
      const TextRow& row = scalars.at(std::to_string(one.seq));
      EXPECT_EQ(row.at("name"), one.name);
      EXPECT_EQ(row.at("window"), std::to_string(one.window));
      expect_same(row.at("value"), one.value, "value");
    }
  }
}

TEST_P(Tables, PayloadsAreTextOrJson) {
  open();
  RecordBatch batch;
  const std::string stack = "File \"a.py\", line 3\nin f";
  Payload text{PayloadType::text, {}, {}};
  for (const char c : stack) text.bytes.push_back(static_cast<std::byte>(c));
  Histogram histogram{-1.0, 0.5, {1, 0, 7}, 2, 3, 4};
  Payload bins{PayloadType::histogram, {}, histogram_bytes(histogram)};
  bins.key.seq = 1;
  batch.payloads = {text, bins};
  sink_->write(batch);
  close();
  const auto found = table("payloads");
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].at("type"), "text");
  EXPECT_EQ(found[0].at("value"), stack);
  EXPECT_EQ(found[1].at("type"), "histogram");
  EXPECT_EQ(found[1].at("value"),
            R"({"low":-1,"high":0.5,"below":2,"above":3,"nans":4,"bins":[1,0,7]})");
}

// The step of a window that has no outcome follows from the one before it, also when that one
// became known after the rows were written.
TEST_P(Tables, StepsFollowOutcomes) {
  Series series;
  series.kind = "grad_reduced";
  series.name = "w";
  const SeriesId w = series_.add(series);
  make_directories(directory_);
  sink_ = is_csv() ? make_csv_sink(1 << 20) : make_sqlite_sink();
  RunInfo run;
  run.directory = directory_;
  run.grad_acc_steps = 2;
  run.start_steps = [] { return std::vector<std::int64_t>{100}; };
  sink_->open(run, series_);
  const auto row_of = [&](std::int64_t window, std::int32_t accum, std::uint64_t seq) {
    Row row;
    row.key = {w, 0, window, accum, 0, seq};
    row.state.count = 1;
    return row;
  };
  RecordBatch first;
  first.rows = {row_of(0, 3, 1)};
  sink_->write(first);
  RecordBatch second;
  second.outcomes = {{0, 0, 100, 0, Fate::skipped, 1024.0}};
  second.rows = {row_of(1, 0, 2)};
  sink_->write(second);
  Declared group;
  group.window = 2;
  group.values = {{"lr", DeclaredValue::Type::number, 0.1, ""}};
  RecordBatch third;
  third.declared = {group};
  third.outcomes = {{0, 1, 100, 1, Fate::taken, 512.0}};
  third.rows = {row_of(2, 0, 3)};
  sink_->write(third);
  close();
  const auto found = rows();
  ASSERT_EQ(found.size(), 3u);
  const std::vector<std::string> steps = {"100", "100", "101"};
  const std::vector<std::string> attempts = {"0", "1", "0"};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(found[i].at("step"), steps[i]) << i;
    EXPECT_EQ(found[i].at("attempt"), attempts[i]) << i;
  }
  EXPECT_EQ(found[0].at("micro_step"), "1");
  ASSERT_EQ(table("declared").size(), 1u);
  EXPECT_EQ(table("declared")[0].at("step"), "101");
  if (is_csv()) return;  // there readers join
  EXPECT_EQ(found[0].at("fate"), "skipped");
  EXPECT_EQ(found[0].at("loss_scale"), "1024");
  EXPECT_EQ(found[1].at("fate"), "taken");
  EXPECT_EQ(found[2].at("fate"), "unknown");
}

TEST_P(Tables, ADeletedDirectoryIsMadeAgainAndTheLossIsInTheData) {
  open();
  std::int64_t lost = 0;
  for (int i = 0; i < 5; ++i) EXPECT_EQ(write(), "");
  for (const RecordBatch& batch : taken_) lost += batch.row_count();
  EXPECT_EQ(flush(), "");
  fs::remove_all(scratch_.path() / "rank_00000");
  taken_.clear();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(write(), "");
  close();
  expect_law();
  std::int64_t told = 0;
  for (const TextRow& gap : table("gaps")) {
    if (gap.at("reason") == "deleted") told += std::stoll(gap.at("rows"));
  }
  EXPECT_EQ(told, lost);
}

TEST_P(Tables, ADeletedFileOfDeclaredValuesBeginsWithThoseThatHold) {
  open();
  const auto write_values = [&](std::int64_t window, std::vector<DeclaredValue> values) {
    RecordBatch batch;
    batch.outcomes = {{0, window, window, 0, Fate::taken, 1.0}};
    batch.declared.emplace_back().window = window;
    batch.declared.back().values = std::move(values);
    sink_->write(batch);
  };
  const auto number = [](const char* name, double value) {
    return DeclaredValue{name, DeclaredValue::Type::number, value, ""};
  };
  write_values(0, {number("lr", 0.5), number("eps", 0.25)});
  write_values(1, {number("lr", 0.125)});
  EXPECT_EQ(flush(), "");
  fs::remove(directory_ / (is_csv() ? "declared.csv" : "stats.db"));
  write_values(2, {number("eps", 0.75)});
  close();
  std::vector<std::string> found;
  for (const TextRow& row : table("declared")) {
    found.push_back(row.at("step") + " " + row.at("name") + " " + row.at("value"));
  }
  std::sort(found.begin(), found.end());
  EXPECT_EQ(found, (std::vector<std::string>{"0 eps 0.25", "1 lr 0.125", "2 eps 0.75"}));
}

TEST_P(Tables, AnotherOnesFileIsNeverTouched) {
  make_directories(directory_);
  const fs::path theirs = directory_ / (is_csv() ? "rows-000000.csv" : "stats.db");
  write_atomically(theirs, "mine\n");
  if (is_csv()) {
    open();
    EXPECT_EQ(write(), "");
    EXPECT_TRUE(fs::exists(directory_ / "rows-000001.csv"));
  } else {
    EXPECT_THROW(open(), SinkError);
  }
  EXPECT_EQ(read_file(theirs), "mine\n");
}

TEST_P(Tables, AFileAtItsLimitIsSaidAndCounted) {
  open();
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 60000;
  ::setrlimit(RLIMIT_FSIZE, &small);
  int refused = 0;
  for (int i = 0; i < 60; ++i) {
    const std::string reason = write() + (i % 5 == 4 ? flush() : "");
    EXPECT_TRUE(reason.empty() || reason.starts_with("file_limit") ||
                reason.starts_with("no_space"))
        << reason;
    refused += reason.empty() ? 0 : 1;
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_GE(refused, 1);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(write(), "");
  close();
  expect_law();
  EXPECT_EQ(left_out() > 0, !is_csv());
}

// Files with locks.
class LockedTables : public Tables {};
INSTANTIATE_TEST_SUITE_P(Sinks, LockedTables, testing::Values("sqlite"),
                         [](const auto& info) { return std::string(info.param); });

// What a reader that stays does to the writer: nothing but to delay it.
TEST_P(LockedTables, AReaderDoesNotLoseRows) {
  open();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(write(), "");
  EXPECT_EQ(flush(), "");
  sqlite3* reader = nullptr;
  ASSERT_EQ(sqlite3_open((directory_ / "stats.db").c_str(), &reader), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(reader, "BEGIN; SELECT count(*) FROM rows", nullptr, nullptr, nullptr),
            SQLITE_OK);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(write(), "");
  EXPECT_EQ(flush(), "");
  close();
  sqlite3_close(reader);
  expect_law();
  EXPECT_EQ(left_out(), 0);
}

#if defined(TRAINMON_FAILPOINTS)

TEST_P(LockedTables, ANetworkFileSystemIsSaidAndItsLocksAreWaitedFor) {
  set_failpoints("sqlite.network=errno:1");
  open();
  set_failpoints("");
  EXPECT_NE(said.find("stands on a network file system (NFS)"), std::string::npos) << said;
  EXPECT_EQ(write(), "");
  EXPECT_EQ(flush(), "");
  EXPECT_FALSE(fs::exists(directory_ / "stats.db-wal"));
  sqlite3* reader = nullptr;
  ASSERT_EQ(sqlite3_open((directory_ / "stats.db").c_str(), &reader), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(reader, "BEGIN; SELECT count(*) FROM rows", nullptr, nullptr, nullptr),
            SQLITE_OK);
  EXPECT_EQ(write(), "");
  EXPECT_EQ(flush(), "busy");
  EXPECT_EQ(write(), "");
  ASSERT_EQ(sqlite3_exec(reader, "COMMIT", nullptr, nullptr, nullptr), SQLITE_OK);
  EXPECT_EQ(flush(), "");
  sqlite3_close(reader);
  close();
  expect_law();
  EXPECT_EQ(left_out(), 0);
}

TEST_P(Tables, EveryErrorAtEveryWrite) {
  install_sqlite_faults();
  const std::string site = is_csv() ? "file.write" : "sqlite.write";
  const std::vector<std::pair<int, std::string>> errors = {
      {ENOSPC, "no_space"}, {EIO, "io_error"}, {EDQUOT, "no_space"}, {EROFS, "read_only"}};
  int refused = 0;
  for (const auto& [error, reason] : errors) {
    for (int hit = 1; hit <= 14; ++hit) {
      start_anew();
      set_failpoints(site + "=short:100@" + std::to_string(hit) + ";" + site +
                     "=errno:" + std::to_string(error) + "@" + std::to_string(hit + 1));
      for (int i = 0; i < 12; ++i) {
        for (const std::string& got : {write(), i % 3 == 2 ? flush() : ""}) {
          if (got.empty()) continue;
          EXPECT_TRUE(got == reason) << got << " for " << reason;
          ++refused;
        }
      }
      set_failpoints("");
      close();
      expect_law();
      if (HasFailure()) FAIL() << reason << " at " << hit;
    }
  }
  EXPECT_GT(refused, 30);
}

TEST_P(Tables, AStormOfRandomFaults) {
  install_sqlite_faults();
  RandomRecords dice(77);
  std::int64_t lost = 0;
  for (int round = 0; round < 50; ++round) {
    start_anew();
    std::string spec;
    for (int i = 0; i < 12; ++i) {
      const std::string at = "@" + std::to_string(1 + dice.below(40));
      const std::string site = is_csv() ? "file.write" : "sqlite.write";
      switch (dice.below(4)) {
        case 0:
          spec += site + "=short:" + std::to_string(1 + dice.below(900)) + at + ";";
          break;
        case 1:
          spec +=
              is_csv() ? "csv.truncate=errno:5" + at + ";" : "sqlite.truncate=errno:5" + at + ";";
          break;
        default:
          spec += site + "=errno:28" + at + ";";
      }
    }
    set_failpoints(spec);
    for (int i = 0; i < 25; ++i) {
      write();
      if (dice.below(3) == 0) flush();
    }
    set_failpoints("");
    write();
    close();
    expect_law();
    expect_declared();  // also of transactions that failed
    lost += left_out();
    if (HasFailure()) FAIL() << "round " << round << ": " << spec;
  }
  EXPECT_EQ(lost > 0, !is_csv());
}

#endif

}  // namespace
}  // namespace trainmon
