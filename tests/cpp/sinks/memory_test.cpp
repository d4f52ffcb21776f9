// The memory sink keeps what it took and says so when it is full.
#include "sinks/memory.h"

#include <gtest/gtest.h>

#include <thread>

#include "records.h"
#include "trainmon/error.h"

namespace trainmon {
namespace {

TEST(MemorySink, KeepsCopiesInOrder) {
  RandomRecords random(1);
  MemorySink sink;
  std::vector<RecordBatch> written;
  for (std::uint64_t i = 0; i < 20; ++i) {
    written.push_back(random.batch(i, 5));
    sink.write(written.back());
  }
  EXPECT_TRUE(same(sink.snapshot(), written));
}

TEST(MemorySink, RefusesBeyondItsLimitAndKeepsWhatItHas) {
  RandomRecords random(2);
  const RecordBatch batch = random.batch(0, 5);
  MemorySink sink(batch.bytes() * 2 + 100);
  std::string reason;
  std::size_t taken = 0;
  try {
    for (; taken < 100; ++taken) sink.write(batch);
  } catch (const SinkError& error) {
    reason = error.reason();
  }
  EXPECT_EQ(reason, "memory_limit");
  EXPECT_EQ(taken, sink.snapshot().size());
  EXPECT_GE(taken, 1u);
  EXPECT_LE(taken, 3u);
}

TEST(MemorySink, SnapshotsWhileWriting) {
  MemorySink sink;
  std::thread writer([&] {
    RandomRecords random(3);
    for (std::uint64_t i = 0; i < 500; ++i) sink.write(random.batch(i, 5, 3));
  });
  std::size_t last = 0;
  while (last < 500) {
    const std::vector<RecordBatch> seen = sink.snapshot();
    ASSERT_GE(seen.size(), last);
    last = seen.size();
    if (!seen.empty()) {
      ASSERT_EQ(seen.back().number, last - 1);
    }
  }
  writer.join();
}

}  // namespace
}  // namespace trainmon
