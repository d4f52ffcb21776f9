// The queue's law: rows in = rows out + rows dropped, under every policy, with nothing flagged
// lost.
#include "pipe/batch_queue.h"

#include <gtest/gtest.h>

#include <deque>
#include <set>
#include <thread>

#include "batches.h"

namespace trainmon {
namespace {

using testing::batch_of;
using Clock = std::chrono::steady_clock;

std::deque<RecordBatch> drain(BatchQueue& queue) {
  std::deque<RecordBatch> all;
  for (Queued& one : queue.pop_all(Clock::now())) {
    queue.release(one.bytes);
    all.push_back(std::move(one.batch));
  }
  return all;
}

std::int64_t rows_in(const std::deque<RecordBatch>& batches) {
  std::int64_t rows = 0;
  for (const RecordBatch& batch : batches) rows += batch.row_count();
  return rows;
}

TEST(BatchQueue, PassesBatchesInOrder) {
  BatchQueue queue(1 << 20, Overflow::drop_newest);
  for (std::uint64_t i = 1; i <= 5; ++i) queue.push(batch_of(i, i * 10, 3), true);
  const auto all = drain(queue);
  ASSERT_EQ(all.size(), 5u);
  for (std::uint64_t i = 0; i < 5; ++i) EXPECT_EQ(all[i].number, i + 1);
  EXPECT_TRUE(queue.dropped().empty());
}

TEST(BatchQueue, ABatchLargerThanTheLimitPassesAnEmptyQueue) {
  BatchQueue queue(1024, Overflow::drop_newest);
  queue.push(batch_of(1, 1, 1000), true);
  EXPECT_EQ(rows_in(drain(queue)), 1000);
}

class EveryDropPolicy : public ::testing::TestWithParam<Overflow> {};

TEST_P(EveryDropPolicy, ConservesRowsAndLeavesGaps) {
  BatchQueue queue(64 << 10, GetParam());
  std::int64_t produced = 0;
  std::int64_t delivered = 0;
  std::int64_t in_gaps = 0;
  const auto count = [&](const std::deque<RecordBatch>& batches) {
    delivered += rows_in(batches);
    for (const RecordBatch& batch : batches) {
      for (const Gap& gap : batch.gaps) in_gaps += gap.rows;
    }
  };
  for (std::uint64_t i = 1; i <= 300; ++i) {
    RecordBatch batch = batch_of(i, i * 100, 99);
    batch.payloads.push_back({PayloadType::text, {.seq = i * 100 + 99}, {}});
    queue.push(std::move(batch), true);
    produced += 100;
    if (i % 50 == 0) count(drain(queue));
  }
  queue.close();
  count(drain(queue));
  EXPECT_GT(delivered, 0);
  EXPECT_GT(queue.dropped()["queue_full"], 0);
  EXPECT_EQ(produced, delivered + queue.dropped()["queue_full"]);
  EXPECT_EQ(in_gaps, queue.dropped()["queue_full"]);
  EXPECT_LE(queue.fill().peak_bytes, (64u << 10) + (64u << 10) / 16 + 4096);
}

// The storm: flagged rows far beyond the reserve. The law holds, memory stays bounded, and the
// first flagged row of every series arrives.
TEST_P(EveryDropPolicy, AStormOfFlaggedRowsStaysBoundedAndNoSeriesIsForgotten) {
  constexpr SeriesId kSeries = 500;
  BatchQueue queue(64 << 10, GetParam());
  std::int64_t produced = 0;
  for (std::uint64_t i = 0; i < 200; ++i) {
    queue.push(batch_of(i + 1, i * 100, 100, kSeries, true), true);
    produced += 100;
  }
  EXPECT_LE(queue.fill().peak_bytes, (64u << 10) + (64u << 10) / 16 + 4096);
  std::set<SeriesId> seen;
  std::int64_t delivered = 0;
  for (int round = 0; round < 2; ++round) {
    const auto all = drain(queue);
    delivered += rows_in(all);
    for (const RecordBatch& batch : all) {
      for (const Row& row : batch.rows) seen.insert(row.key.series);
    }
    queue.close();
  }
  EXPECT_EQ(seen.size(), kSeries);
  EXPECT_EQ(produced, delivered + queue.dropped()["queue_full"]);
}

TEST_P(EveryDropPolicy, OutcomesAndScalarsAreNeverLost) {
  BatchQueue queue(32 << 10, GetParam());
  for (std::uint64_t i = 0; i < 100; ++i) {
    RecordBatch batch = batch_of(i + 1, i * 50, 50, 8, true);
    batch.outcomes.push_back(
        {0, static_cast<std::int64_t>(i), static_cast<std::int64_t>(i), 0, Fate::taken, 1.0});
    batch.scalars.push_back({"loss", static_cast<std::int64_t>(i), i, 1.0});
    queue.push(std::move(batch), true);
  }
  std::vector<std::int64_t> windows;
  std::size_t scalars = 0;
  for (int round = 0; round < 2; ++round) {
    for (const RecordBatch& batch : drain(queue)) {
      for (const Outcome& outcome : batch.outcomes) windows.push_back(outcome.window);
      scalars += batch.scalars.size();
    }
    queue.close();
  }
  ASSERT_EQ(windows.size(), 100u);
  EXPECT_TRUE(std::is_sorted(windows.begin(), windows.end()));
  EXPECT_EQ(scalars, 100u);
}

INSTANTIATE_TEST_SUITE_P(Policies, EveryDropPolicy,
                         ::testing::Values(Overflow::drop_newest, Overflow::drop_oldest));

TEST(BatchQueue, DropNewestKeepsTheOldRowsAndDropOldestTheNew) {
  for (const Overflow policy : {Overflow::drop_newest, Overflow::drop_oldest}) {
    BatchQueue queue(64 << 10, policy);
    for (std::uint64_t i = 1; i <= 40; ++i) queue.push(batch_of(i, i * 100, 100), true);
    std::set<std::uint64_t> kept;
    for (const RecordBatch& batch : drain(queue)) {
      if (!batch.rows.empty()) kept.insert(batch.number);
    }
    ASSERT_FALSE(kept.empty());
    EXPECT_EQ(*kept.begin() == 1, policy == Overflow::drop_newest);
    EXPECT_EQ(*kept.rbegin() == 40, policy == Overflow::drop_oldest);
  }
}

TEST(BatchQueue, RowsBeyondALimitAreKeptAsBadOnesAre) {
  BatchQueue queue(2000, Overflow::drop_newest);
  for (std::uint64_t number = 1; number <= 20; ++number) {
    RecordBatch batch = batch_of(number, number * 10, 10);
    batch.rows[3].key.flags = flag::kOverLimit;
    queue.push(std::move(batch), true);
  }
  std::size_t kept = 0;
  std::size_t plain = 0;
  for (const Queued& one : queue.pop_all(std::chrono::steady_clock::now())) {
    for (const Row& row : one.batch.rows) {
      ((row.key.flags & flag::kOverLimit) != 0 ? kept : plain) += 1;
    }
  }
  EXPECT_GT(queue.dropped()["queue_full"], 0);
  EXPECT_LT(plain, 20u * 9u);
  EXPECT_GE(kept, 8u);  // a series whose row is carried already may lose a later one
}

TEST(BatchQueue, BlockWaitsForTheWriterAndLosesNothing) {
  BatchQueue queue(64 << 10, Overflow::block);
  std::thread producer([&] {
    for (std::uint64_t i = 1; i <= 100; ++i) queue.push(batch_of(i, i * 100, 100), true);
  });
  std::int64_t delivered = 0;
  while (delivered < 10000) {
    delivered += rows_in(drain(queue));
    std::this_thread::yield();
  }
  producer.join();
  EXPECT_EQ(delivered, 10000);
  EXPECT_TRUE(queue.dropped().empty());
}

TEST(BatchQueue, BlockGivesWayWhenTheQueueCloses) {
  BatchQueue queue(16 << 10, Overflow::block);
  queue.push(batch_of(1, 1, 80), true);
  std::thread producer([&] { queue.push(batch_of(2, 101, 80), true); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  queue.close();
  producer.join();
  EXPECT_EQ(rows_in(drain(queue)) + queue.dropped()["queue_full"] + queue.dropped()["stopped"],
            160);
}

TEST(BatchQueue, AfterCloseEverythingCountsAsStopped) {
  BatchQueue queue(1 << 20, Overflow::drop_newest);
  queue.close();
  queue.push(batch_of(1, 1, 7), true);
  EXPECT_EQ(queue.dropped()["stopped"], 7);
  EXPECT_TRUE(drain(queue).empty());
}

TEST(BatchQueue, ManyProducersConserveRows) {
  BatchQueue queue(128 << 10, Overflow::drop_newest);
  std::atomic<bool> done{false};
  std::atomic<std::int64_t> delivered{0};
  std::thread writer([&] {
    while (!done) delivered += rows_in(drain(queue));
  });
  std::vector<std::thread> producers;
  for (std::uint64_t t = 0; t < 4; ++t) {
    producers.emplace_back([&, t] {
      for (std::uint64_t i = 1; i <= 200; ++i)
        queue.push(batch_of(i, t * 100000 + i * 50, 50), true);
    });
  }
  for (auto& producer : producers) producer.join();
  done = true;
  writer.join();
  queue.close();
  delivered += rows_in(drain(queue));
  EXPECT_EQ(delivered + queue.dropped()["queue_full"], 4 * 200 * 50);
}

}  // namespace
}  // namespace trainmon
