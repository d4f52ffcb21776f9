// Rows set apart by kind are those that are read at once, in the order of files.
#include "read/rows_by_kind.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "scratch.h"
#include "written_run.h"

namespace trainmon {
namespace {

using Key = std::tuple<std::string, std::int32_t, std::string, std::int32_t, std::int64_t,
                       std::int32_t, std::uint64_t, std::int64_t, double>;

Series one_of(std::string kind, std::string name, int optimizer) {
  Series series;
  series.kind = std::move(kind);
  series.name = std::move(name);
  series.optimizer = optimizer;
  return series;
}

// Two restarts of two ranks, two optimizers whose rows take turns, enough rows for many blocks.
void write(const std::filesystem::path& run) {
  for (const int number : {0, 1}) {
    for (const int restart : {0, 1}) {
      WrittenRank rank(run, number, restart, "\"start_steps\": [0, 500]", 20000);
      std::vector<SeriesId> series;
      for (const char* const name : {"b", "a\xff", "a"}) {
        for (const int optimizer : {0, 1}) {
          series.push_back(rank.add(one_of("grad_reduced", name, optimizer)));
          series.push_back(rank.add(one_of("exp_avg", name, optimizer)));
        }
      }
      const std::int64_t begin = restart * 400;
      for (std::int64_t window = 0; window < 900; ++window) {
        for (std::size_t i = 0; i < series.size(); ++i) {
          rank.row(series[i], window,
                   WrittenRank::one(static_cast<double>(window) + 0.125 * static_cast<double>(i)));
        }
        rank.outcome(window, begin + window, Fate::taken);
        if (window % 7 == 0) rank.write();
      }
      rank.write();
    }
  }
}

TEST(RowsByKind, AreTheRowsOfTheRunInTheOrderOfFiles) {
  const Scratch scratch;
  write(scratch.path() / "run");
  ReadOptions options;
  options.first_step = 100;
  RowsByKind apart(scratch.path() / "run", options, {Stat::max, Stat::count}, scratch.path());
  for (const int rank : {1, 0}) {
    apart.take_rank(rank);
    ASSERT_EQ(apart.kinds(), (std::vector<std::string>{"exp_avg", "grad_reduced"}));
    for (const std::string& kind : apart.kinds()) {
      ReadOptions of_kind = options;
      of_kind.kinds = {kind};
      of_kind.ranks = {rank};
      const RunRows read = read_run(scratch.path() / "run", of_kind);
      std::vector<Key> expected, found;
      for (const ReadRow& row : read.rows) {
        const Series& series = read.series[row.series];
        const std::string name = series.name == "a\xff" ? "a\\xff" : series.name;
        expected.emplace_back(name, series.chunk, series.element, row.restart, row.step,
                              row.attempt, row.seq, row.window, row.state.max);
      }
      std::sort(expected.begin(), expected.end());
      const KindRows rows = apart.rows_of(kind);
      std::vector<PlacedRow> some;
      std::vector<double> values;
      for (std::size_t begin = 0; begin < rows.size(); begin += 1000) {
        rows.read(begin, begin + 1000, some, values);
        for (std::size_t i = 0; i < some.size(); ++i) {
          const Series& series = apart.facts().series[some[i].series];
          EXPECT_EQ(some[i].rank, rank);
          EXPECT_EQ(values[2 * i + 1], 1.0);
          found.emplace_back(valid_text(series.name), series.chunk, series.element, some[i].restart,
                             some[i].step, some[i].attempt, some[i].seq, some[i].window,
                             values[2 * i]);
        }
      }
      ASSERT_FALSE(expected.empty());
      EXPECT_EQ(found, expected);
    }
  }
  // The file has no name.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(scratch.path()), {}), 1);
}

}  // namespace
}  // namespace trainmon
