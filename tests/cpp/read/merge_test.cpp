// Rows merged over ranks against the statistics of the whole, computed here element by element.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "read/merge_rows.h"
#include "written_run.h"

namespace trainmon {
namespace {

RunRows merged(const std::filesystem::path& run) {
  ReadOptions options;
  options.merged = true;
  return read_run(run, options);
}

Series shard(std::int64_t begin, std::int64_t end, std::int64_t full) {
  return {"grad_reduced",       0, "w", "", 0, DType::float32, Space::flat, {{begin, end}}, {full},
          Replication::disjoint};
}

TEST(Merge, ShardsGiveTheWhole) {
  RandomRecords random(1);
  std::vector<double> elements(1000);
  for (double& x : elements) x = static_cast<double>(random.below(2000000)) / 1e6 - 1.0;
  const Scratch scratch;
  const std::vector<std::int64_t> cuts = {0, 13, 13, 600, 1000};  // one rank holds nothing
  for (std::size_t r = 0; r + 1 < cuts.size(); ++r) {
    std::vector<double> part(elements.begin() + cuts[r], elements.begin() + cuts[r + 1]);
    const std::int64_t size = 1;
    const double* data = part.data();
    RowState state;
    for (const double& x : part) {
      TensorView view;
      view.data = &x;
      view.dtype = DType::float64;
      view.ndim = 1;
      view.sizes = &size;
      merge(state, measure(view));
    }
    EXPECT_EQ(state.count, static_cast<std::int64_t>(part.size()));
    EXPECT_EQ(data, part.data());
    WrittenRank rank(scratch.path(), static_cast<int>(r), 0);
    rank.row(rank.add(shard(cuts[r], cuts[r + 1], 1000)), 0, state);
    rank.write();
  }
  const RunRows rows = merged(scratch.path());
  ASSERT_EQ(rows.rows.size(), 1u);
  const ReadRow& row = rows.rows[0];
  EXPECT_EQ(row.rank, -1);
  EXPECT_EQ(row.flags, 0u);
  const Series& series = rows.series[row.series];
  EXPECT_EQ(series.space, Space::whole);
  EXPECT_TRUE(series.ranges.empty());
  const long double sum = std::accumulate(elements.begin(), elements.end(), 0.0L);
  long double squares = 0, deviations = 0;
  for (const double x : elements) {
    squares += static_cast<long double>(x) * x;
    deviations += (x - sum / 1000) * (x - sum / 1000);
  }
  EXPECT_NEAR(derive(Stat::norm, row.state), static_cast<double>(std::sqrt(squares)), 1e-12);
  EXPECT_NEAR(derive(Stat::mean, row.state), static_cast<double>(sum / 1000), 1e-15);
  EXPECT_NEAR(row.state.m2, static_cast<double>(deviations), 1e-10);
  EXPECT_EQ(derive(Stat::min, row.state), *std::min_element(elements.begin(), elements.end()));
  EXPECT_EQ(derive(Stat::max, row.state), *std::max_element(elements.begin(), elements.end()));
  EXPECT_EQ(row.state.count, 1000);
}

TEST(Merge, AShapeIsThatOfTheWholeOrOfAllCopies) {
  const Scratch scratch;
  for (const int number : {0, 1}) {
    WrittenRank rank(scratch.path(), number, 0);
    const auto row = [&](const char* name, Series series, const Shape& shape) {
      series.name = name;
      Row& fresh = rank.row(rank.add(series), 0);
      fresh.shape = rank.add(shape);
    };
    row("part", shard(number, number + 1, 2), {1});
    Series copy;
    copy.kind = "grad_reduced";
    copy.replication = Replication::identical;
    row("copies", copy, {4, 2});
    row("copies that differ", copy, {4 - number});
    copy.replication = Replication::disjoint;
    row("activation", copy, {3 + number});
    rank.write();
  }
  const RunRows rows = merged(scratch.path());
  std::vector<std::tuple<std::string, int, std::optional<Shape>>> found;
  for (const ReadRow& row : rows.rows) {
    found.emplace_back(rows.series[row.series].name, row.rank,
                       row.shape == nullptr ? std::nullopt : std::optional(*row.shape));
  }
  std::sort(found.begin(), found.end());
  const decltype(found) expected = {{"activation", -1, std::nullopt},
                                    {"copies", -1, Shape{4, 2}},
                                    {"copies that differ", 0, Shape{4}},
                                    {"copies that differ", 1, Shape{3}},
                                    {"part", -1, Shape{2}}};
  EXPECT_EQ(found, expected);
}

TEST(Merge, AMissingShardIsFlaggedAndAReplicatedOneCountsOnce) {
  const Scratch scratch;
  RowState half = WrittenRank::one(2.0);
  for (const int number : {0, 1, 2}) {
    WrittenRank rank(scratch.path(), number, 0);
    // Ranks 0 and 2 hold the same part of "w"; of "v" the second half is nowhere.
    const std::int64_t begin = number == 1 ? 1 : 0;
    rank.row(rank.add(shard(begin, begin + 1, 2)), 0, half);
    Series missing = shard(0, 1, 2);
    missing.name = "v";
    rank.row(rank.add(missing), 0, half);
    rank.write();
  }
  const RunRows rows = merged(scratch.path());
  ASSERT_EQ(rows.rows.size(), 2u);
  for (const ReadRow& row : rows.rows) {
    const bool is_complete = rows.series[row.series].name == "w";
    EXPECT_EQ(row.state.count, is_complete ? 2 : 1);
    EXPECT_EQ(row.flags, is_complete ? 0u : flag::kPartial);
  }
}

// As of two models, each spread over two ranks, or of a replica that has gone astray.
TEST(Merge, PartsThatRanksHoldWithOtherBitsStayPerRank) {
  const Scratch scratch;
  for (const int number : {0, 1, 2, 3}) {
    WrittenRank rank(scratch.path(), number, 0);
    const std::int64_t begin = number % 2;
    rank.row(rank.add(shard(begin, begin + 1, 2)), 0, WrittenRank::one(number < 3 ? 2.0 : 2.5));
    Series other = shard(begin, begin + 1, 2);
    other.name = "v";
    rank.row(rank.add(other), 0, WrittenRank::one(3.0));
    rank.write();
  }
  const RunRows rows = merged(scratch.path());
  std::vector<std::tuple<std::string, int, std::int64_t>> found;
  for (const ReadRow& row : rows.rows) {
    found.emplace_back(rows.series[row.series].name, row.rank, row.state.count);
  }
  std::ranges::sort(found);
  const decltype(found) expected = {
      {"v", -1, 2}, {"w", 0, 1}, {"w", 1, 1}, {"w", 2, 1}, {"w", 3, 1}};
  EXPECT_EQ(found, expected);
}

TEST(Merge, ActivationsOfAllRanksAddUp) {
  const Scratch scratch;
  for (const int number : {0, 1, 2}) {
    WrittenRank rank(scratch.path(), number, 0);
    Series actv;
    actv.kind = "actv";
    actv.name = "mlp";
    actv.element = "output";
    actv.replication = Replication::disjoint;
    const SeriesId id = rank.add(actv);
    for (std::int32_t call = 0; call < 2; ++call) {
      rank.row(id, 0, WrittenRank::one(number + 10.0 * call)).key.call = call;
    }
    rank.write();
  }
  const RunRows rows = merged(scratch.path());
  ASSERT_EQ(rows.rows.size(), 2u);
  EXPECT_EQ(rows.rows[0].state.sum, 3.0);
  EXPECT_EQ(rows.rows[1].state.sum, 33.0);
  EXPECT_EQ(rows.rows[1].state.count, 3);
}

TEST(Merge, IdenticalIsTakenOnceOnlyWhenItIs) {
  const Scratch scratch;
  for (const int number : {0, 1}) {
    WrittenRank rank(scratch.path(), number, 0);
    Series same_everywhere;
    same_everywhere.kind = "param_origin";
    same_everywhere.replication = Replication::identical;
    const SeriesId w = rank.add(same_everywhere);
    rank.row(w, 0, WrittenRank::one(1.0));
    rank.row(w, 1, WrittenRank::one(number == 0 ? 1.0 : std::nextafter(1.0, 2.0)));
    rank.write();
  }
  const RunRows rows = merged(scratch.path());
  std::vector<std::pair<std::int64_t, int>> found;
  for (const ReadRow& row : rows.rows) found.emplace_back(row.step, row.rank);
  EXPECT_EQ(found, (std::vector<std::pair<std::int64_t, int>>{{0, -1}, {1, 0}, {1, 1}}));
}

// A second backward through the same forward (a gradient penalty, retain_graph) gives rows that
// differ in seq alone.
Series backward_of(std::int64_t begin, std::int64_t end) {
  Series series = shard(begin, end, 4);
  series.kind = "actv_grad";
  return series;
}

std::vector<std::pair<int, double>> ranks_and_sums(const RunRows& rows) {
  std::vector<std::pair<int, double>> found;
  for (const ReadRow& row : rows.rows) found.emplace_back(row.rank, row.state.sum);
  return found;
}

TEST(Merge, BackwardsOfOneForwardAreMergedEachWithItsOwn) {
  const Scratch scratch;
  for (const int number : {0, 1}) {
    WrittenRank rank(scratch.path(), number, 0);
    // Rank 0 holds two pieces, as series of their own; rank 1 the rest.
    std::vector<SeriesId> pieces = {rank.add(backward_of(2 * number, 2 * number + 1)),
                                    rank.add(backward_of(2 * number + 1, 2 * number + 2))};
    Series same = backward_of(0, 4);
    same.name = "same";
    same.replication = Replication::identical;
    const SeriesId copy = rank.add(same);
    for (const double backward : {1.0, 100.0, 10000.0}) {
      for (const SeriesId piece : pieces) rank.row(piece, 0, WrittenRank::one(backward));
      rank.row(copy, 0, WrittenRank::one(-backward));
    }
    rank.write();
  }
  const RunRows rows = merged(scratch.path());
  EXPECT_EQ(ranks_and_sums(rows),
            (std::vector<std::pair<int, double>>{
                {-1, 4.0}, {-1, -1.0}, {-1, 400.0}, {-1, -100.0}, {-1, 40000.0}, {-1, -10000.0}}));
  for (const ReadRow& row : rows.rows) EXPECT_EQ(row.flags, 0u);
}

TEST(Merge, RanksWithDifferentNumbersOfBackwardsStayPerRank) {
  for (const Replication replication : {Replication::disjoint, Replication::identical}) {
    const Scratch scratch;
    for (const int number : {0, 1}) {
      WrittenRank rank(scratch.path(), number, 0);
      Series series = backward_of(2 * number, 2 * number + 2);
      series.replication = replication;
      if (replication == Replication::identical) series.ranges = {{0, 4}};
      const SeriesId id = rank.add(series);
      rank.row(id, 0, WrittenRank::one(1.0));
      if (number == 0) rank.row(id, 0, WrittenRank::one(1.0));
      rank.row(id, 1, WrittenRank::one(2.0));  // the next window has one of each again
      rank.write();
    }
    const RunRows rows = merged(scratch.path());
    ASSERT_EQ(rows.rows.size(), 4u);
    EXPECT_EQ((std::vector<int>{rows.rows[0].rank, rows.rows[1].rank, rows.rows[2].rank,
                                rows.rows[3].rank}),
              (std::vector<int>{0, 0, 1, -1}));
  }
}

// Copies that are kept once give what all of them give.
TEST(Merge, CopiesThatAreKeptOnceChangeNothing) {
  RandomRecords random(7);
  std::vector<Series> series(4);
  for (std::size_t i = 0; i < series.size(); ++i) {
    series[i].kind = "grad_reduced";
    series[i].name = "w" + std::to_string(i);
    series[i].replication = Replication::identical;
  }
  series[2].replication = Replication::partial;
  series[3] = series[1];
  series[3].dtype = DType::float16;  // of one tensor with series 1
  const auto shapes = std::make_shared<std::set<Shape>>();
  int merged_rows = 0, left_rows = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<ReadRow> rows;
    for (int rank = 0; rank < 5; ++rank) {
      for (std::uint32_t one = 0; one < 4; ++one) {
        const auto backwards = random.below(8) == 0 ? 2 : 1;
        for (std::int64_t i = 0; i < backwards; ++i) {
          if (random.below(40) == 0) continue;
          ReadRow& row = rows.emplace_back();
          row.rank = rank;
          row.series = one;
          row.step = random.below(2);
          row.seq = rows.size();  // no two rows of a rank have the same
          row.state.count = 4;
          row.state.sum = random.below(60) == 0 ? 2.0 : 1.0;
          row.flags = random.below(60) == 0 ? flag::kPartial : 0u;
          row.loss_scale = std::nan("");
        }
      }
    }
    RankMerger merger(series, shapes);
    RowsToMerge to_merge(merger);
    for (const ReadRow& row : rows) to_merge.add(row);
    std::vector<ReadRow> kept, of_kept, of_all;
    to_merge.take(kept);
    EXPECT_LE(kept.size(), rows.size());
    merger.merge(kept, of_kept);
    merger.merge(rows, of_all);
    ASSERT_EQ(of_kept.size(), of_all.size());
    for (std::size_t i = 0; i < of_all.size(); ++i) {
      const ReadRow &a = of_kept[i], &b = of_all[i];
      ASSERT_EQ(std::tie(a.series, a.step, a.rank, a.seq, a.flags, a.state.sum),
                std::tie(b.series, b.step, b.rank, b.seq, b.flags, b.state.sum));
      ++(a.rank < 0 ? merged_rows : left_rows);
    }
    to_merge.take(kept = {});
    EXPECT_TRUE(kept.empty());
  }
  EXPECT_GT(merged_rows, 100);
  EXPECT_GT(left_rows, 100);
}

TEST(Merge, PartialAndIndependentStayPerRank) {
  const Scratch scratch;
  for (const int number : {0, 1}) {
    WrittenRank rank(scratch.path(), number, 0);
    for (const Replication replication : {Replication::partial, Replication::independent}) {
      Series series;
      series.kind = "grad_unreduced";
      series.replication = replication;
      rank.row(rank.add(series), 0);
    }
    rank.write();
  }
  EXPECT_EQ(merged(scratch.path()).rows.size(), 4u);
}

}  // namespace
}  // namespace trainmon
