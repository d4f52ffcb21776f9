// The first bad row and the largest values, on runs made to have them.
#include <gtest/gtest.h>

#include <cmath>

#include "answers/top.h"
#include "trainmon/first_bad.h"
#include "written_run.h"

namespace trainmon {
namespace {

TEST(FirstBad, NoneInASoundRun) {
  const Scratch scratch;
  WrittenRank rank(scratch.path(), 0, 0);
  rank.row(rank.add("grad_reduced", "w"), 0);
  rank.write();
  EXPECT_FALSE(first_bad(read_run(scratch.path())));
}

TEST(FirstBad, TheEarliestStepOfAnyRankAndWhoSharesIt) {
  const Scratch scratch;
  for (const int number : {0, 1, 2}) {
    WrittenRank rank(scratch.path(), number, 0);
    const SeriesId a = rank.add("grad_reduced", "a"), b = rank.add("grad_reduced", "b");
    for (std::int64_t window = 0; window < 6; ++window) {
      rank.row(a, window, window == 5 && number == 0 ? WrittenRank::nan() : WrittenRank::one(1.0));
      rank.row(b, window, window == 3 && number != 0 ? WrittenRank::nan() : WrittenRank::one(1.0));
      rank.outcome(window, window);
    }
    rank.write();
  }
  const auto found = first_bad(read_run(scratch.path()));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->series.name, "b");
  EXPECT_EQ(found->row.step, 3);
  EXPECT_EQ(found->row.rank, 1);
  EXPECT_EQ(found->ranks, (std::vector<int>{1, 2}));
}

TEST(FirstBad, WithinAStepTheOrderOfTheStep) {
  // Written last to first: the order of writing must not matter, that of the step must.
  const std::vector<std::string> order = {"param_origin", "actv",    "grad_unreduced",
                                          "grad_reduced", "exp_avg", "param_updated"};
  for (std::size_t first = 0; first < order.size(); ++first) {
    const Scratch scratch;
    WrittenRank rank(scratch.path(), 0, 0);
    for (std::size_t i = order.size(); i-- > 0;) {
      rank.row(rank.add(order[i], "w"), 0, i >= first ? WrittenRank::nan() : WrittenRank::one(1.0));
    }
    rank.write();
    EXPECT_EQ(first_bad(read_run(scratch.path()))->series.kind, order[first]);
  }
}

TEST(FirstBad, StepsALossScalerDroppedCountOnlyWhenNothingElseIsBad) {
  for (const bool is_truly_bad : {false, true}) {
    const Scratch scratch;
    WrittenRank rank(scratch.path(), 0, 0);
    const SeriesId w = rank.add("grad_reduced", "w"), out = rank.add("actv", "mlp");
    rank.row(w, 0, WrittenRank::nan());
    rank.outcome(0, 0, Fate::skipped);
    rank.row(w, 1);
    rank.outcome(1, 0, Fate::taken, 1);
    rank.row(out, 2, is_truly_bad ? WrittenRank::nan() : WrittenRank::one(1.0));
    rank.row(w, 2, is_truly_bad ? WrittenRank::nan() : WrittenRank::one(1.0));
    rank.outcome(2, 1, is_truly_bad ? Fate::skipped : Fate::taken);
    rank.batch().outcomes.back().loss_scale = 1024.0;  // no scaler makes a NaN in a forward
    rank.write();
    const auto found = first_bad(read_run(scratch.path()));
    ASSERT_TRUE(found);
    EXPECT_EQ(found->series.kind, is_truly_bad ? "actv" : "grad_reduced");
    EXPECT_EQ(found->row.step, is_truly_bad ? 1 : 0);
  }
}

// Steps `first` to `last` of one rank and restart, a NaN in "w" of the kind given at those in
// `bad`.
void write_steps(const Scratch& scratch, int rank_number, int restart, std::int64_t first,
                 std::int64_t last, const std::vector<std::int64_t>& bad,
                 const std::string& kind = "grad_reduced") {
  WrittenRank rank(scratch.path(), rank_number, restart,
                   "\"start_steps\": [" + std::to_string(first) + "]");
  const SeriesId w = rank.add(kind, "w");
  for (std::int64_t step = first; step <= last; ++step) {
    const bool is_bad = std::find(bad.begin(), bad.end(), step) != bad.end();
    rank.row(w, step - first, is_bad ? WrittenRank::nan() : WrittenRank::one(1.0));
    rank.outcome(step - first, step);
  }
  rank.write();
}

TEST(FirstBad, TheStepComesBeforeTheRestart) {
  const Scratch scratch;
  write_steps(scratch, 0, 0, 0, 9, {6, 8});
  write_steps(scratch, 0, 1, 5, 7, {7});  // step 6 was good this time; 8 and 9 were not repeated
  const RunRows newest = read_run(scratch.path());
  const auto found = first_bad(newest);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->row.step, 7);
  EXPECT_EQ(found->row.restart, 1);
  // Of many NaN the earliest leads the ranking, too.
  EXPECT_EQ(top(newest, Stat::norm, 1).at(0).row.step, 7);
}

TEST(FirstBad, AmongEqualStepsTheOlderRestartWhenBothAreShown) {
  const Scratch scratch;
  write_steps(scratch, 0, 0, 0, 9, {6}, "param_updated");
  write_steps(scratch, 0, 1, 5, 9, {6}, "param_origin");
  ReadOptions all;
  all.all_restarts = true;
  const auto found = first_bad(read_run(scratch.path(), all));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->row.restart, 0);
  const RunRows rows = read_run(scratch.path(), all);
  EXPECT_EQ(top(rows, Stat::norm, 1).at(0).row.restart, 0);
}

TEST(FirstBad, WithinAStepTheOrderOfTheStepWhateverTheRestart) {
  // Rank 1 never got to step 6 again: its newest row of it is that of the older restart.
  const Scratch scratch;
  write_steps(scratch, 0, 0, 0, 9, {});
  write_steps(scratch, 0, 1, 5, 9, {6}, "param_origin");
  write_steps(scratch, 1, 0, 0, 9, {6}, "grad_reduced");
  const auto found = first_bad(read_run(scratch.path()));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->series.kind, "param_origin");
}

TEST(Top, OfEqualValuesTheEarliest) {
  const Scratch scratch;
  write_steps(scratch, 0, 0, 0, 9, {});
  write_steps(scratch, 0, 1, 0, 7, {});  // 8 and 9 are those of restart 0
  EXPECT_EQ(top(read_run(scratch.path()), Stat::norm, 1).at(0).row.step, 0);
}

TEST(Top, ATensorThatChangedItsDtypeIsOneLine) {
  const Scratch scratch;
  WrittenRank rank(scratch.path(), 0, 0);
  Series series;
  series.kind = "actv";
  series.name = "mlp";
  const SeriesId narrow = rank.add(series);
  series.dtype = DType::float64;
  const SeriesId wide = rank.add(series);
  rank.row(narrow, 0, WrittenRank::one(1.0));
  rank.row(wide, 1, WrittenRank::one(3.0));
  rank.write();
  const auto ranked = top(read_run(scratch.path()), Stat::max, 10);
  ASSERT_EQ(ranked.size(), 1u);
  EXPECT_EQ(ranked[0].value, 3.0);
}

TEST(Top, OneRowPerSeriesNanFirst) {
  const Scratch scratch;
  WrittenRank rank(scratch.path(), 0, 0);
  const std::vector<double> peaks = {3.0, 9.0, 1.0, 5.0};
  for (std::size_t i = 0; i < peaks.size(); ++i) {
    const SeriesId id = rank.add("grad_reduced", "p" + std::to_string(i));
    for (std::int64_t window = 0; window < 3; ++window) {
      rank.row(id, window, WrittenRank::one(window == 1 ? peaks[i] : 0.5));
    }
  }
  rank.row(rank.add("grad_reduced", "bad"), 2, WrittenRank::nan());
  rank.row(rank.add("grad_reduced", "empty"), 2, RowState());
  rank.write();
  const RunRows rows = read_run(scratch.path());
  const auto names = [&](bool smallest, std::size_t count) {
    std::vector<std::string> list;
    for (const Ranked& ranked : top(rows, Stat::norm, count, smallest)) {
      list.push_back(rows.series[ranked.row.series].name);
    }
    return list;
  };
  EXPECT_EQ(names(false, 10), (std::vector<std::string>{"bad", "p1", "p3", "p0", "p2"}));
  EXPECT_EQ(names(false, 2), (std::vector<std::string>{"bad", "p1"}));
  EXPECT_EQ(names(true, 1), std::vector<std::string>{"bad"});
  const std::vector<Ranked> largest = top(rows, Stat::norm, 2);
  EXPECT_TRUE(std::isnan(largest[0].value));
  EXPECT_EQ(largest[1].value, 9.0);
  EXPECT_EQ(largest[1].row.step, 1);
}

}  // namespace
}  // namespace trainmon
