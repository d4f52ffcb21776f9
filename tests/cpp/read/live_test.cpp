// Reading a log while it is written: always a prefix, never damage.
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <thread>

#include "base/file.h"
#include "read/log.h"
#include "read/log_tail.h"
#include "records.h"
#include "scratch.h"
#include "sinks/sinks.h"
#include "trainmon/read.h"

namespace trainmon {
namespace {

TEST(Live, AReaderSeesAGrowingPrefix) {
  const Scratch scratch;
  RandomRecords random(1);
  ListedSeries series;
  for (int i = 0; i < 5; ++i) series.add(random.series());
  std::vector<RecordBatch> batches;
  for (std::uint64_t i = 0; i < 3000; ++i) batches.push_back(random.batch(i, 5, 4));
  RunInfo run;
  run.directory = scratch.path();
  const std::unique_ptr<Sink> log = make_log_sink(20000);
  log->open(run, series);
  std::atomic<std::size_t> written = 0;
  std::thread writer([&] {
    for (const RecordBatch& batch : batches) {
      log->write(batch);
      ++written;
    }
  });
  std::size_t seen = 0, reads = 0;
  while (seen < batches.size()) {
    const std::size_t before = written;
    const LogContents contents = read_log(scratch.path(), 0, 0);
    const std::size_t count = contents.batches.size();
    EXPECT_GE(count, before);
    EXPECT_GE(count, seen);
    EXPECT_TRUE(contents.damage.empty()) << contents.damage.front().what;
    for (std::size_t i = 0; i < count; ++i) {
      if (contents.batches[i].number == i) continue;
      ADD_FAILURE() << "batch " << i << " is " << contents.batches[i].number;
      break;
    }
    seen = count;
    ++reads;
    if (HasFailure()) break;
  }
  writer.join();
  EXPECT_GT(reads, 1u);
}

// Numbers of the batches that looks of at most so many bytes give, and where damage was.
std::pair<std::vector<std::uint64_t>, std::vector<std::int64_t>> followed(
    const std::filesystem::path& directory, std::int64_t most) {
  LogTail tail(directory, 0, 0, std::numeric_limits<std::size_t>::max());
  std::vector<std::uint64_t> numbers;
  std::vector<Damage> damage;
  int looks = 0;
  while (tail.look([&](RecordBatch&& batch) { numbers.push_back(batch.number); }, damage, most)) {
    ++looks;
  }
  EXPECT_TRUE(most >= 1000 || looks > 100) << looks;
  std::vector<std::int64_t> places;
  for (const Damage& one : damage) places.push_back(one.offset);
  return {numbers, places};
}

TEST(Live, PiecesOfAnySizeGiveTheSame) {
  const Scratch scratch;
  RandomRecords random(2);
  ListedSeries series;
  for (int i = 0; i < 5; ++i) series.add(random.series());
  RunInfo run;
  run.directory = scratch.path();
  const std::unique_ptr<Sink> log = make_log_sink(100000);
  log->open(run, series);
  for (std::uint64_t i = 1; i <= 400; ++i) log->write(random.batch(i, 5, i % 50 == 0 ? 200 : 4));
  const auto whole = followed(scratch.path(), LogTail::kAll);
  EXPECT_EQ(whole.first.size(), 400u);
  EXPECT_TRUE(whole.second.empty());
  for (const std::int64_t most : {1, 100, 5000, 1 << 20}) {
    EXPECT_EQ(followed(scratch.path(), most), whole) << most;
  }
  const std::filesystem::path first = scratch.path() / "log-000000.tmlog";
  std::string bytes = read_file(first);
  for (const std::size_t at : {bytes.size() / 3, bytes.size() / 2}) bytes[at] ^= 0x55;
  write_atomically(first, bytes);
  const auto damaged = followed(scratch.path(), LogTail::kAll);
  EXPECT_EQ(damaged.second.size(), 2u);
  EXPECT_GE(damaged.first.size(), 390u);
  for (const std::int64_t most : {1, 100, 5000, 1 << 20}) {
    EXPECT_EQ(followed(scratch.path(), most), damaged) << most;
  }
}

}  // namespace
}  // namespace trainmon
