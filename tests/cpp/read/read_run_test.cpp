// Steps, attempts, restarts and selections, each against what the run was made to be.
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <map>
#include <optional>
#include <tuple>

#include "read/account.h"
#include "written_run.h"

namespace trainmon {
namespace {

using Steps = std::vector<std::pair<std::int64_t, std::int32_t>>;

Steps steps_of(const RunRows& rows) {
  Steps steps;
  for (const ReadRow& row : rows.rows) steps.emplace_back(row.step, row.attempt);
  return steps;
}

std::string error_of(const auto& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(ReadRun, OutcomesGiveStepsAndOpenWindowsFollow) {
  const Scratch scratch;
  WrittenRank rank(scratch.path(), 0, 0, "\"start_steps\": [100]");
  const SeriesId w = rank.add("grad_reduced", "w");
  // Taken, skipped twice, taken, unknown, then two windows still open.
  const std::vector<std::tuple<Fate, std::int64_t, int>> fates = {{Fate::taken, 100, 0},
                                                                  {Fate::skipped, 101, 0},
                                                                  {Fate::skipped, 101, 1},
                                                                  {Fate::taken, 101, 2},
                                                                  {Fate::unknown, 102, 0}};
  for (std::size_t window = 0; window < fates.size(); ++window) {
    rank.row(w, static_cast<std::int64_t>(window));
    rank.write();
    // The outcome comes later, in a batch of its own.
    const auto& [fate, step, attempt] = fates[window];
    rank.outcome(static_cast<std::int64_t>(window), step, fate, attempt);
    rank.write();
  }
  rank.row(w, 5);
  rank.row(w, 6);
  rank.write();
  const RunRows rows = read_run(scratch.path());
  EXPECT_EQ(steps_of(rows),
            (Steps{{100, 0}, {101, 0}, {101, 1}, {101, 2}, {102, 0}, {102, 1}, {103, 0}}));
  EXPECT_EQ(rows.rows[1].fate, Fate::skipped);
  EXPECT_EQ(rows.rows[6].fate, Fate::unknown);
  EXPECT_TRUE(rows.damage.empty());
}

TEST(ReadRun, WithoutAnyOutcomeStepsStartWhereRunJsonSays) {
  const Scratch scratch;
  WrittenRank rank(scratch.path(), 0, 0, "\"start_steps\": [7, 50]");
  Series second;
  second.kind = "grad_reduced";
  second.name = "g";
  second.optimizer = 1;
  const SeriesId first = rank.add("grad_reduced", "d"), other = rank.add(second);
  rank.row(first, 0);
  rank.row(other, 0);
  rank.row(other, 2);
  rank.write();
  EXPECT_EQ(steps_of(read_run(scratch.path())), (Steps{{7, 0}, {50, 0}, {52, 0}}));
}

TEST(ReadRun, TheNewestRestartWinsPerRankAndStep) {
  const Scratch scratch;
  const auto write = [&](int rank_number, int restart, std::int64_t first, std::int64_t count) {
    WrittenRank rank(scratch.path(), rank_number, restart,
                     "\"start_steps\": [" + std::to_string(first) + "]");
    const SeriesId w = rank.add("grad_reduced", "w");
    for (std::int64_t i = 0; i < count; ++i) {
      rank.row(w, i, WrittenRank::one(restart * 1000.0 + static_cast<double>(first + i)));
      rank.outcome(i, first + i);
      rank.batch().scalars.push_back(
          {"loss", i, 0, restart * 1000.0 + static_cast<double>(first + i)});
      rank.write();
    }
  };
  write(0, 0, 0, 10);
  write(0, 1, 5, 3);  // repeats 5, 6, 7
  write(1, 0, 0, 8);
  write(1, 2, 7, 3);  // repeats 7, adds 8 and 9
  const RunRows rows = read_run(scratch.path());
  std::vector<std::vector<double>> values(2), losses(2);
  for (const ReadRow& row : rows.rows) {
    values[static_cast<std::size_t>(row.rank)].push_back(row.state.sum);
  }
  for (const ReadScalar& scalar : rows.scalars) {
    losses[static_cast<std::size_t>(scalar.rank)].push_back(scalar.value);
  }
  const std::vector<double> rank0 = {0, 1, 2, 3, 4, 8, 9, 1005, 1006, 1007};
  const std::vector<double> rank1 = {0, 1, 2, 3, 4, 5, 6, 2007, 2008, 2009};
  EXPECT_EQ(values[0], rank0);
  EXPECT_EQ(values[1], rank1);
  EXPECT_EQ(losses[0], rank0);
  EXPECT_EQ(losses[1], rank1);
  ReadOptions all;
  all.all_restarts = true;
  EXPECT_EQ(read_run(scratch.path(), all).rows.size(), 24u);
}

// A run that goes on with fewer processes goes through steps again for those that are gone, too.
TEST(ReadRun, AStepOfFewerRanksReplacesThatOfMore) {
  const Scratch scratch;
  const auto write = [&](int rank_number, int restart, int world_size, std::int64_t first,
                         std::int64_t count) {
    WrittenRank rank(scratch.path(), rank_number, restart,
                     "\"world_size\": " + std::to_string(world_size) + ", \"start_steps\": [" +
                         std::to_string(first) + "]");
    const SeriesId w = rank.add("grad_reduced", "w");
    for (std::int64_t i = 0; i < count; ++i) {
      rank.row(w, i);
      rank.outcome(i, first + i);
      rank.batch().scalars.push_back({"loss", i, 0, 1.0});
    }
    rank.write();
  };
  for (const int rank : {0, 1, 2}) write(rank, 0, 3, 0, 4);
  for (const int rank : {0, 1}) write(rank, 1, 2, 2, 1);  // step 2 again, nothing beyond
  const RunRows rows = read_run(scratch.path());
  std::map<int, std::vector<std::pair<int, std::int64_t>>> of_rank, losses;
  for (const ReadRow& row : rows.rows) of_rank[row.rank].emplace_back(row.restart, row.step);
  for (const ReadScalar& loss : rows.scalars) {
    losses[loss.rank].emplace_back(loss.restart, loss.step);
  }
  const std::vector<std::pair<int, std::int64_t>> stays = {{0, 0}, {0, 1}, {0, 3}, {1, 2}};
  EXPECT_EQ(of_rank[0], stays);
  EXPECT_EQ(of_rank[1], stays);
  EXPECT_EQ(of_rank[2], (std::vector<std::pair<int, std::int64_t>>{{0, 0}, {0, 1}, {0, 3}}));
  EXPECT_EQ(losses[2], of_rank[2]);
  ReadOptions alone;
  alone.ranks = {2};
  const RunRows one = read_run(scratch.path(), alone);
  std::vector<std::pair<int, std::int64_t>> places;
  for (const ReadRow& row : one.rows) places.emplace_back(row.restart, row.step);
  EXPECT_EQ(places, of_rank[2]);
  EXPECT_EQ(one.scalars.size(), 3u);
  ReadOptions all;
  all.all_restarts = true;
  EXPECT_EQ(read_run(scratch.path(), all).rows.size(), 14u);
}

TEST(ReadRun, ARestartThatFilteredRowsOutStillWins) {
  const Scratch scratch;
  for (const int restart : {0, 1}) {
    WrittenRank rank(scratch.path(), 0, restart);
    rank.row(rank.add(restart == 0 ? "actv" : "grad_reduced", "w"), 0);
    rank.outcome(0, 0);
    rank.write();
  }
  ReadOptions options;
  options.kinds = {"actv"};
  EXPECT_TRUE(read_run(scratch.path(), options).rows.empty());
}

TEST(ReadRun, Selections) {
  const Scratch scratch;
  for (const int number : {0, 3}) {
    WrittenRank rank(scratch.path(), number, 0);
    for (const char* kind : {"grad_unreduced", "grad_reduced", "exp_avg", "actv", "param_origin"}) {
      for (const char* name : {"layers.1.weight", "layers.10.weight"}) {
        for (std::int64_t window = 0; window < 4; ++window) rank.row(rank.add(kind, name), window);
      }
    }
    for (std::int64_t window = 0; window < 4; ++window) rank.outcome(window, window);
    rank.write();
  }
  const auto count = [&](const auto& select) {
    ReadOptions options;
    select(options);
    return read_run(scratch.path(), options).rows.size();
  };
  EXPECT_EQ(count([](ReadOptions&) {}), 80u);
  EXPECT_EQ(count([](ReadOptions& o) { o.kinds = {"grads"}; }), 32u);
  EXPECT_EQ(count([](ReadOptions& o) { o.kinds = {"moments"}; }), 16u);
  EXPECT_EQ(count([](ReadOptions& o) { o.kinds = {"exp_avg", "actv"}; }), 32u);
  EXPECT_EQ(count([](ReadOptions& o) { o.kinds = {"all"}; }), 80u);
  EXPECT_EQ(count([](ReadOptions& o) { o.include = {"layers.1"}; }), 40u);
  EXPECT_EQ(count([](ReadOptions& o) { o.exclude = {"layers.1"}; }), 40u);
  EXPECT_EQ(count([](ReadOptions& o) { o.ranks = {3}; }), 40u);
  EXPECT_EQ(count([](ReadOptions& o) {
              o.first_step = 1;
              o.last_step = 2;
            }),
            40u);
  EXPECT_EQ(count([](ReadOptions& o) { o.kinds = {"cc"}; }),
            0u);  // a kind of trainmon's that this run has not
  const std::string error =
      error_of([&] { count([](ReadOptions& o) { o.kinds = {"exp_avgg"}; }); });
  EXPECT_EQ(error,
            "unknown kind 'exp_avgg' (did you mean 'exp_avg'?); this run has actv exp_avg "
            "grad_reduced grad_unreduced param_origin");
}

// Ranks and restarts number shapes by themselves, and a shape may come in any segment.
TEST(ReadRun, RowsHaveTheShapeTheyWereWrittenWith) {
  const Scratch scratch;
  const std::vector<Shape> shapes = {{}, {0, 5}, {7}, {7, 1}, {1, 7}};
  std::map<std::tuple<int, int, std::int64_t>, std::optional<Shape>> written;
  for (const int number : {0, 1}) {
    for (const int restart : {0, 1}) {
      WrittenRank rank(scratch.path(), number, restart, "\"start_steps\": [0]", 1000);
      Series weight;
      weight.kind = kind::kGradReduced;
      weight.full_shape = {2, 3};
      const SeriesId known = rank.add(weight), varies = rank.add("actv", "m");
      std::vector<ShapeId> numbers = {kUnknownShape, kFullShape};
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        const auto turn = (i + static_cast<std::size_t>(number + 2 * restart)) % shapes.size();
        numbers.push_back(rank.add(shapes[turn]));
      }
      for (std::int64_t window = 0; window < 20; ++window) {
        const auto turn = static_cast<std::size_t>(window) % numbers.size();
        rank.row(known, window).shape = kFullShape;
        Row& row = rank.row(varies, window);
        row.shape = numbers[turn];
        const auto at =
            (turn - kFirstShape + static_cast<std::size_t>(number + 2 * restart)) % shapes.size();
        written[{number, restart, window}] = row.shape == kUnknownShape ? std::nullopt
                                             : row.shape == kFullShape  ? std::optional(Shape())
                                                                        : std::optional(shapes[at]);
        rank.outcome(window, window);
        rank.write();
      }
      EXPECT_TRUE(std::filesystem::exists(rank.directory() / "log-000001.tmlog"));
    }
  }
  ReadOptions options;
  options.all_restarts = true;
  const RunRows rows = read_run(scratch.path(), options);
  EXPECT_EQ(rows.rows.size(), 2 * written.size());
  for (const ReadRow& row : rows.rows) {
    const auto found = row.shape == nullptr ? std::nullopt : std::optional(*row.shape);
    const bool is_weight = rows.series[row.series].kind == kind::kGradReduced;
    EXPECT_EQ(found, is_weight ? std::optional(Shape{2, 3})
                               : written.at({row.rank, row.restart, row.step}));
  }
}

TEST(ReadRun, RanksThatShouldBeThereAndAreNot) {
  struct Case {
    std::string facts;       // run.json of ranks 0 and 2
    std::vector<int> asked;  // ranks selected
    std::vector<int> missing;
    std::string text;
  };
  const std::string four = "\"world_size\": 4";
  const std::vector<Case> cases = {
      {four, {}, {1, 3}, "ranks 1 3 of 4 are missing"},
      {four, {0, 2}, {}, ""},
      {four, {2, 3, 7}, {3}, "rank 3 of 4 is missing"},
      {"\"world_size\": 9", {}, {1, 3, 4, 5, 6, 7, 8}, "ranks 1 3-8 of 9 are missing"},
      {four + ", \"config\": {\"ranks\": []}", {}, {1, 3}, "ranks 1 3 of 4 are missing"},
      {four + ", \"config\": {\"ranks\": [2, 0]}", {}, {}, ""},
      {four + ", \"config\": {\"ranks\": [0, 3, 7]}", {}, {3}, "rank 3 of 4 is missing"},
      {four + ", \"config\": {\"ranks\": \"x\"}", {}, {1, 3}, "ranks 1 3 of 4 are missing"},
      {"\"world_size\": 1", {}, {}, ""},
      {"\"world_size\": -3", {}, {}, ""},
      {"\"world_size\": \"x\"", {}, {}, ""},
      {"\"world_size\": 4000000000000", {}, {}, ""},
  };
  for (const Case& expected : cases) {
    const Scratch scratch;
    for (const int number : {0, 2}) WrittenRank rank(scratch.path(), number, 0, expected.facts);
    ReadOptions options;
    options.ranks = expected.asked;
    const RunRows rows = read_run(scratch.path(), options);
    EXPECT_EQ(rows.missing.ranks, expected.missing) << expected.facts;
    EXPECT_EQ(missing_text(rows.missing), expected.text);
    EXPECT_EQ(rows.damage.empty(), expected.facts.find("\"x\"") == std::string::npos);
    if (expected.asked.empty()) {
      EXPECT_EQ(account(scratch.path()).missing.ranks, expected.missing);
    }
  }
}

TEST(ReadRun, ARankOfAnyRestartIsThere) {
  // Four ranks, then two after a restart, then three: the fourth was in the first only.
  const Scratch scratch;
  for (const int number : {0, 1, 3}) {
    WrittenRank rank(scratch.path(), number, 0, "\"world_size\": 4");
  }
  WrittenRank again(scratch.path(), 0, 1, "\"world_size\": 2");
  EXPECT_EQ(read_run(scratch.path()).missing.ranks, std::vector<int>{2});
  WrittenRank third(scratch.path(), 2, 2, "\"world_size\": 3");
  EXPECT_TRUE(read_run(scratch.path()).missing.ranks.empty());
}

TEST(ReadRun, MicroStepsWhereTheirNumberIsKnown) {
  const Scratch scratch;
  WrittenRank rank(scratch.path(), 0, 0, "\"config\": {\"grad_acc_steps\": 2}");
  const SeriesId w = rank.add("grad_unreduced", "w");
  for (std::int32_t accum = 0; accum < 4; ++accum) rank.row(w, 0).key.accum = accum;
  rank.write();
  std::vector<std::int32_t> micro_steps;
  for (const ReadRow& row : read_run(scratch.path()).rows) micro_steps.push_back(row.micro_step);
  EXPECT_EQ(micro_steps, (std::vector<std::int32_t>{0, 1, 0, 1}));
}

TEST(ReadRun, EqualSeriesOfRanksAreOneAlertsAndGapsCarryTheirRank) {
  const Scratch scratch;
  for (const int number : {0, 1}) {
    WrittenRank rank(scratch.path(), number, 0);
    rank.add("actv", "unused" + std::to_string(number));
    const SeriesId w = rank.add("grad_reduced", "w");
    rank.row(w, 0);
    if (number == 1) {
      Alert alert;
      alert.rule = "non_finite";
      alert.key.series = w;
      rank.batch().alerts.push_back(alert);
      rank.batch().gaps.push_back({"queue_full", 5, 0, 9});
    }
    rank.write();
  }
  const RunRows rows = read_run(scratch.path());
  ASSERT_EQ(rows.series.size(), 1u);
  ASSERT_EQ(rows.alerts.size(), 1u);
  EXPECT_EQ(rows.alerts[0].rank, 1);
  EXPECT_EQ(rows.series[rows.alerts[0].alert.key.series].name, "w");
  ASSERT_EQ(rows.gaps.size(), 1u);
  EXPECT_EQ(rows.gaps[0].rank, 1);
  EXPECT_EQ(rows.ranks, (std::vector<int>{0, 1}));
}

TEST(ReadRun, RepeatsOfAnAlertAreOneDifferentFindingsAreSeveral) {
  const Scratch scratch;
  WrittenRank rank(scratch.path(), 0, 0);
  const SeriesId w = rank.add("grad_reduced", "w");
  const auto tell = [&](const char* rule, const char* stat, std::uint64_t seq, int count) {
    rank.row(w, 0);
    Alert alert;
    alert.rule = rule;
    alert.stat = stat;
    alert.key.series = w;
    alert.key.seq = seq;
    alert.count = count;
    alert.value = 2.5;
    alert.expected = 1.25;
    rank.batch().alerts.push_back(alert);
    rank.write();
  };
  tell("deviation", "norm", 3, 1);
  tell("deviation", "mean", 3, 1);
  tell("deviation", "norm", 3, 2);
  tell("limit", "norm", 3, 1);
  tell("deviation", "norm", 3, 4);
  tell("deviation", "norm", 7, 1);
  const RunRows rows = read_run(scratch.path());
  std::vector<std::tuple<std::string, std::string, std::uint64_t, std::int64_t>> found;
  for (const ReadAlert& alert : rows.alerts) {
    found.emplace_back(alert.alert.rule, alert.alert.stat, alert.alert.key.seq, alert.alert.count);
    EXPECT_EQ(alert.alert.value, 2.5);
    EXPECT_EQ(alert.alert.expected, 1.25);
  }
  EXPECT_EQ(found, (decltype(found){{"deviation", "norm", 3, 4},
                                    {"deviation", "mean", 3, 1},
                                    {"limit", "norm", 3, 1},
                                    {"deviation", "norm", 7, 1}}));
}

TEST(ReadRun, WhatIsNoRunIsSaid) {
  const Scratch scratch;
  const auto error = [&](const std::filesystem::path& path) {
    return error_of([&] { read_run(path); });
  };
  EXPECT_EQ(error(scratch.path() / "none"),
            "no such directory: " + (scratch.path() / "none").string());
  WrittenRank rank(scratch.path() / "a", 0, 0);
  EXPECT_EQ(error(scratch.path()), "no run in " + scratch.path().string() +
                                       ": it has no rank_*/restart_* directory; did you mean " +
                                       (scratch.path() / "a").string());
  EXPECT_EQ(error(rank.directory() / "run.json"),
            (rank.directory() / "run.json").string() + " is not a directory");
}

// Root may read everything; while this lives, the test may not.
class WithoutPrivilege {
 public:
  WithoutPrivilege() {
    ::syscall(SYS_capget, &header_, before_);
    __user_cap_data_struct now[2] = {before_[0], before_[1]};
    now[0].effective &= ~((1u << CAP_DAC_OVERRIDE) | (1u << CAP_DAC_READ_SEARCH));
    ::syscall(SYS_capset, &header_, now);
  }
  ~WithoutPrivilege() { ::syscall(SYS_capset, &header_, before_); }

 private:
  __user_cap_header_struct header_ = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct before_[2] = {};
};

TEST(ReadRun, DirectoriesThatMayNotBeReadAreNamed) {
  const Scratch scratch;
  const auto run = scratch.path() / "run";
  for (const int number : {0, 1}) {
    WrittenRank rank(run, number, 0, "\"world_size\": 2");
    rank.row(rank.add("grad_reduced", "w"), 0);
    rank.write();
  }
  const auto denied = [](const std::filesystem::path& path) {
    return "cannot read " + path.string() + ": Permission denied";
  };
  const auto with_mode = [](const std::filesystem::path& path, unsigned mode, const auto& look) {
    std::filesystem::permissions(path, std::filesystem::perms(mode));
    {
      const WithoutPrivilege here;
      look();
    }
    std::filesystem::permissions(path, std::filesystem::perms(0700));
  };
  for (const unsigned mode : {0000u, 0400u, 0100u}) {
    // The run itself: without x, its entries are listed, but what they are cannot be told.
    with_mode(run, mode, [&] {
      const std::string error = error_of([&] { read_run(run); });
      EXPECT_EQ(error, denied(mode == 0400 ? run / "rank_00000" : run)) << mode;
    });
    // The directory above it.
    if (mode != 0100) {
      with_mode(scratch.path(), mode,
                [&] { EXPECT_EQ(error_of([&] { read_run(run); }), denied(run)) << mode; });
    }
    // One rank of two, or its restart: the other one is read.
    for (const auto& path : {run / "rank_00001", rank_path(run, 1, 0)}) {
      with_mode(path, mode, [&] {
        const RunRows rows = read_run(run);
        EXPECT_EQ(rows.rows.size(), 1u);
        ASSERT_FALSE(rows.damage.empty()) << path << mode;
        EXPECT_NE(rows.damage.back().what.find("Permission denied"), std::string::npos);
        EXPECT_FALSE(account(run).damage.empty());
        ReadOptions healthy;
        healthy.ranks = {0};
        EXPECT_TRUE(read_run(run, healthy).damage.empty());
      });
    }
  }
}

TEST(ReadRun, OddJsonIsDamageAndHidesNothing) {
  const Scratch scratch;
  for (const char* text :
       {"", "{", "[]", "null", "{\"start_steps\": \"x\", \"config\": 3, \"clock\": []}", "\xFF\xFE",
        "{\"rank\": 1e999}"}) {
    WrittenRank rank(scratch.path(), 0, 0);
    rank.row(rank.add("grad_reduced", "w"), 0);
    rank.write();
    write_atomically(rank.directory() / "run.json", text);
    const RunRows rows = read_run(scratch.path());
    EXPECT_EQ(rows.rows.size(), 1u) << text;
    EXPECT_FALSE(rows.damage.empty()) << text;
    std::filesystem::remove_all(scratch.path() / "rank_00000");
  }
}

TEST(ReadRun, AStartThatWasKilledAtOnceIsNotDamage) {
  const Scratch run;
  WrittenRank rank(run.path(), 0, 0);
  rank.row(rank.add("grad_reduced", "w"), 0);
  rank.write();
  const std::filesystem::path killed = rank_path(run.path(), 0, 1);
  make_directories(killed);
  EXPECT_TRUE(read_run(run.path()).damage.empty());
  std::ofstream(killed / "run.json.tmp") << "{";
  EXPECT_TRUE(read_run(run.path()).damage.empty());
  // A directory in which more than that was written has lost its run.json.
  std::ofstream(killed / "health.json") << "{}";
  EXPECT_EQ(read_run(run.path()).damage.size(), 1u);
}

}  // namespace
}  // namespace trainmon
