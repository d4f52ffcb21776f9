// Reading a log while it is written: always a prefix, never damage.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "read/log.h"
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

}  // namespace
}  // namespace trainmon
