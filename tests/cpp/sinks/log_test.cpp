// What the log sink writes is what it was given, in the files it promises.
#include "read/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <optional>

#include "base/failpoint.h"
#include "base/file.h"
#include "records.h"
#include "scratch.h"
#include "sinks/compress.h"
#include "sinks/memory.h"
#include "sinks/sinks.h"
#include "trainmon/read.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

RunInfo run_in(const fs::path& directory) {
  RunInfo run;
  run.directory = directory;
  run.run_id = "job 7";
  run.rank = 3;
  run.world_size = 8;
  run.restart = 2;
  return run;
}

std::vector<fs::path> files_in(const fs::path& directory) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(directory)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

TEST(LogSink, GivesBackEveryRecordOfEveryType) {
  for (const std::size_t segment_bytes : {1u, 3000u, 1u << 26}) {
    const Scratch scratch;
    RandomRecords random(segment_bytes);
    ListedSeries series;
    for (int i = 0; i < 30; ++i) series.add(random.series());
    MemorySink memory;
    const std::unique_ptr<Sink> log = make_log_sink(segment_bytes);
    log->open(run_in(scratch.path()), series);
    for (std::uint64_t i = 0; i < 150; ++i) {
      // New series appear while the log is written.
      if (i % 10 == 0) series.add(random.series());
      const RecordBatch batch = random.batch(i, series.size());
      memory.write(batch);
      log->write(batch);
    }
    log->close();
    const LogContents contents = read_log(scratch.path(), 3, 2);
    EXPECT_TRUE(same(contents.batches, memory.snapshot())) << segment_bytes;
    EXPECT_TRUE(contents.damage.empty()) << contents.damage.front().what;
    EXPECT_EQ(contents.torn_tails, 0);
    for (const auto& [id, definition] : contents.series) EXPECT_EQ(definition, series.at(id));
    EXPECT_EQ(contents.files, static_cast<std::int64_t>(files_in(scratch.path()).size()));
    if (segment_bytes == 1) {
      EXPECT_EQ(contents.files, 150);
    }
    if (segment_bytes == 3000) {
      EXPECT_GT(contents.files, 10);
    }
    if (segment_bytes > 3000) {
      EXPECT_EQ(contents.files, 1);
    }
  }
}

// Each segment alone, with other batches or without: what a row says of its shape needs no more
// than its own frame and its series.
TEST(LogSink, GivesBackTheShapeOfEveryRow) {
  for (const std::size_t segment_bytes : {1u, 3000u, 1u << 26}) {
    const Scratch scratch;
    RandomRecords random(segment_bytes);
    ListedSeries series;
    for (int i = 0; i < 30; ++i) series.add(random.series());
    const std::vector<Shape> shapes = {{}, {0}, {1, 2, 3}, {0, 7}, {std::int64_t{1} << 62}, {3}};
    std::vector<ShapeId> numbers = {kUnknownShape, kFullShape};
    for (const Shape& shape : shapes) numbers.push_back(series.add(shape));
    const std::unique_ptr<Sink> log = make_log_sink(segment_bytes);
    log->open(run_in(scratch.path()), series);
    std::map<std::uint64_t, std::optional<Shape>> written;  // by seq
    for (std::uint64_t i = 0; i < 150; ++i) {
      RecordBatch batch = random.batch(i, series.size());
      const std::uint64_t among = i % 3 == 0 ? numbers.size() : 2;
      for (Row& row : batch.rows) {
        row.shape = numbers[random.below(among)];
        written[row.key.seq] = shape_written(series, row);
      }
      log->write(batch);
    }
    log->close();
    std::size_t rows = 0;
    for (const fs::path& file : files_in(scratch.path())) {
      const Scratch alone;
      fs::copy_file(file, alone.path() / file.filename());
      const LogContents contents = read_log(alone.path(), 3, 2);
      for (const RecordBatch& batch : contents.batches) {
        for (const Row& row : batch.rows) {
          EXPECT_EQ(shape_read(contents, batch, row), written.at(row.key.seq));
          ++rows;
        }
      }
    }
    EXPECT_EQ(rows, written.size());
  }
}

TEST(LogSink, EverySegmentParsesAlone) {
  const Scratch scratch;
  RandomRecords random(5);
  ListedSeries series;
  for (int i = 0; i < 10; ++i) series.add(random.series());
  const std::unique_ptr<Sink> log = make_log_sink(2000);
  log->open(run_in(scratch.path()), series);
  std::vector<RecordBatch> written;
  for (std::uint64_t i = 0; i < 40; ++i) {
    written.push_back(random.batch(i, 10));
    log->write(written.back());
  }
  log->close();
  std::size_t found = 0;
  for (const fs::path& file : files_in(scratch.path())) {
    const Scratch alone;
    fs::copy_file(file, alone.path() / file.filename());
    const LogContents contents = read_log(alone.path(), 3, 2);
    for (const RecordBatch& batch : contents.batches) {
      EXPECT_TRUE(same(batch, written[batch.number]));
    }
    found += contents.batches.size();
  }
  EXPECT_EQ(found, written.size());
}

TEST(LogSink, FilesAreNamedAndProtectedAsPromised) {
  const Scratch scratch;
  RandomRecords random(6);
  ListedSeries series;
  series.add(random.series());
  const mode_t before = ::umask(0);
  const std::unique_ptr<Sink> log = make_log_sink(1);
  log->open(run_in(scratch.path()), series);
  for (std::uint64_t i = 0; i < 3; ++i) log->write(random.batch(i, 1));
  ::umask(before);
  std::vector<std::string> names;
  for (const fs::path& file : files_in(scratch.path())) {
    names.push_back(file.filename().string());
    struct stat status {};
    ASSERT_EQ(::stat(file.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0640u);
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"log-000000.tmlog", "log-000001.tmlog", "log-000002.tmlog"}));
}

TEST(LogSink, NeverFollowsOrReusesWhatStandsInItsPlace) {
  const Scratch scratch;
  const fs::path victim = scratch.path() / "victim";
  write_atomically(victim, "untouched");
  const fs::path directory = scratch.path() / "run";
  make_directories(directory);
  fs::create_symlink(victim, directory / "log-000000.tmlog");
  write_atomically(directory / "log-000001.tmlog", "somebody else's");
  RandomRecords random(7);
  ListedSeries series;
  series.add(random.series());
  const std::unique_ptr<Sink> log = make_log_sink(1 << 20);
  log->open(run_in(directory), series);
  const RecordBatch batch = random.batch(0, 1);
  log->write(batch);
  log->close();
  EXPECT_EQ(read_file(victim), "untouched");
  EXPECT_EQ(read_file(directory / "log-000001.tmlog"), "somebody else's");
  const LogContents contents = read_log(directory, 3, 2);
  EXPECT_TRUE(same(contents.batches, std::vector<RecordBatch>{batch}));
  EXPECT_EQ(contents.damage.size(), 2u);  // both are reported, neither hides the log
}

#if defined(TRAINMON_FAILPOINTS)
TEST(LogSink, OneWritePerBatch) {
  const Scratch scratch;
  RandomRecords random(8);
  ListedSeries series;
  for (int i = 0; i < 50; ++i) series.add(random.series());
  const std::unique_ptr<Sink> log = make_log_sink(1 << 20);
  set_failpoints("");
  log->open(run_in(scratch.path()), series);
  EXPECT_EQ(failpoint_hits("file.write"), 1);
  for (std::uint64_t i = 0; i < 10; ++i) log->write(random.batch(i, 50));
  EXPECT_EQ(failpoint_hits("file.write"), 11);
}
#endif

TEST(LogSink, CompressesWhatGetsSmallerAndGivesItBack) {
  const Scratch scratch;
  RandomRecords random(10);
  ListedSeries series;
  series.add(random.series());
  RecordBatch batch = random.batch(0, 1);
  Payload text{PayloadType::text, RowKey(), {}};
  for (int line = 0; text.bytes.size() < 100000; ++line) {  // not smaller than a 64th
    for (const char c : "line " + std::to_string(line) + "\n") {
      text.bytes.push_back(static_cast<std::byte>(c));
    }
  }
  batch.payloads.push_back(text);
  const std::unique_ptr<Sink> log = make_log_sink(1 << 20);
  log->open(run_in(scratch.path()), series);
  log->write(batch);
  log->close();
  EXPECT_EQ(fs::file_size(scratch.path() / "log-000000.tmlog") < 50000, has_zstd());
  EXPECT_TRUE(same(read_log(scratch.path(), 3, 2).batches, std::vector<RecordBatch>{batch}));
}

// A realistic batch: gradients of a model in float32, finite, every step the same tensors.
TEST(LogSink, RowsAreCompact) {
  const Scratch scratch;
  std::mt19937 random(9);
  ListedSeries series;
  for (int i = 0; i < 150; ++i) {
    series.add({"grad_reduced",
                0,
                "layers." + std::to_string(i) + ".weight",
                "",
                0,
                DType::float32,
                Space::whole,
                {},
                {768, 768},
                Replication::identical});
  }
  const std::unique_ptr<Sink> log = make_log_sink(1 << 26);
  log->open(run_in(scratch.path()), series);
  std::normal_distribution<float> normal;
  std::uint64_t seq = 0;
  for (std::uint64_t step = 0; step < 100; ++step) {
    RecordBatch batch;
    batch.number = step;
    for (SeriesId id = 0; id < 150; ++id) {
      RowState s;
      s.count = 768 * 768;
      s.zeros = static_cast<std::int64_t>(random() % 2);
      s.sum = static_cast<double>(normal(random)) * 1.1;
      s.mean = s.sum / static_cast<double>(s.count);
      s.m2 = static_cast<double>(normal(random)) * 1.3;
      s.sum_sq = s.m2 * 1.0001;
      s.min = static_cast<double>(-std::abs(normal(random)));
      s.max = static_cast<double>(std::abs(normal(random)));
      s.absmax = std::max(-s.min, s.max);
      batch.rows.push_back({{id, 0, static_cast<std::int64_t>(step), 0, 0, seq++}, s, kFullShape});
    }
    log->write(batch);
  }
  log->close();
  const double bytes_per_row =
      static_cast<double>(fs::file_size(scratch.path() / "log-000000.tmlog")) / 15000.0;
  RecordProperty("bytes_per_row", std::to_string(bytes_per_row));
  EXPECT_LT(bytes_per_row, 45.0);
}

}  // namespace
}  // namespace trainmon
