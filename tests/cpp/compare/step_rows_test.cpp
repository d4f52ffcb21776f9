// Steps of a log, read a piece at a time, hold the rows that a whole run merged in memory has.
#include "compare/step_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "read/compact.h"
#include "written_run.h"

namespace trainmon {
namespace {

using Place = std::tuple<std::int64_t, std::int32_t, std::int32_t, std::string, std::int32_t,
                         std::int32_t, std::uint64_t, std::vector<std::string>>;

// As text, in which a NaN is equal to itself.
std::vector<std::string> texts(const ComparedValues& values) {
  std::vector<std::string> all;
  for (const double value : values) {
    char text[40];
    std::snprintf(text, sizeof(text), "%a", value);
    all.emplace_back(text);
  }
  return all;
}

Place place_of(const ReadRow& row, const Series& series) {
  ComparedValues values;
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = derive(kComparedStats[i], row.state);
  return {row.step,  row.rank, row.attempt, series.kind + " " + series.name,
          row.accum, row.call, row.seq,     texts(values)};
}

Series part_of(const char* kind, std::string name, Replication replication, int rank) {
  Series series;
  series.kind = kind;
  series.name = std::move(name);
  series.replication = replication;
  series.full_shape = {4};
  if (replication == Replication::disjoint) {
    series.space = Space::box;
    series.ranges = {{2 * rank, 2 * rank + 2}};
  }
  return series;
}

// Ranks that hold copies, which sometimes differ, shards, and values of their own; forwards that
// are called again; restarts that go through steps again; batches of few and of many windows.
void write_random(const std::filesystem::path& run, std::mt19937& random, int ranks) {
  const auto below = [&](unsigned end) { return static_cast<int>(random() % end); };
  const int again = below(20);  // where the restart begins
  for (int number = 0; number < ranks; ++number) {
    for (const int restart : {0, 1}) {
      const int begin = restart * again;
      WrittenRank rank(run, number, restart, "\"start_steps\": [" + std::to_string(begin) + "]",
                       20000);
      std::vector<SeriesId> series;
      for (const char* const kind : {"actv", "grad_unreduced", "grad_reduced", "mg_direction"}) {
        for (const auto& [name, replication] :
             {std::pair("own", Replication::independent), std::pair("copy", Replication::identical),
              std::pair("shard", Replication::disjoint)}) {
          series.push_back(rank.add(part_of(kind, name, replication, number)));
        }
      }
      for (int window = 0; window < 40; ++window) {
        for (const SeriesId one : series) {
          if (below(9) == 0) continue;
          const double value = one % 3 == 1 && below(9) != 0 ? window : window + 0.1 * number;
          Row& row = rank.row(one, window - (below(20) == 0 ? 1 : 0),
                              below(200) == 0 ? WrittenRank::nan() : WrittenRank::one(value));
          row.key.accum = below(2);
          row.key.call = below(2);
        }
        const Fate fate = below(6) == 0 ? Fate::skipped : Fate::taken;
        rank.outcome(window, begin + window, fate);
        if (below(4) != 0) rank.write();
      }
      rank.write();
    }
  }
}

TEST(StepRows, AreThoseOfTheRunMergedAtOnce) {
  std::mt19937 random(3);
  std::size_t rows = 0, merged = 0;
  for (int round = 0; round < 24; ++round) {
    const int ranks = round % 3 + 1;
    const Scratch scratch;
    write_random(scratch.path(), random, ranks);
    if (round % 2 != 0) compact(scratch.path(), [](std::int64_t, std::int64_t) { return true; });
    std::vector<Place> expected, activations, found, by_rank;
    ReadOptions options;
    options.merged = true;
    const RunRows whole = read_run(scratch.path(), options);
    for (const ReadRow& row : whole.rows) {
      const Series& series = whole.series[row.series];
      if (series.kind != "mg_direction") expected.push_back(place_of(row, series));
    }
    options.merged = false;
    const RunRows all = read_run(scratch.path(), options);
    for (const ReadRow& row : all.rows) {
      const Series& series = all.series[row.series];
      if (series.kind == "actv") activations.push_back(place_of(row, series));
    }
    const RunStream stream(scratch.path(), {});
    TensorTable tensors(true);
    const unsigned threads = std::array{1u, 2u, 3u, 8u}[static_cast<std::size_t>(round) % 4];
    const auto steps = log_steps(stream, tensors, threads);
    for (int pass = 0; pass < 2; ++pass) {
      found.clear();
      by_rank.clear();
      steps->rewind();
      StepRows step;
      for (std::int64_t before = -100; steps->next(step); before = step.step) {
        EXPECT_LT(before, step.step);
        const auto add = [&](const std::vector<ComparedRow>& from, std::vector<Place>& to) {
          for (const ComparedRow& row : from) {
            const ComparedTensor& tensor = tensors[row.tensor];
            to.emplace_back(step.step, row.rank, row.attempt, tensor.kind + " " + tensor.name,
                            row.accum, row.call, row.seq, texts(row.values));
          }
        };
        add(step.rows, found);
        add(step.merged, found);
        add(step.by_rank, by_rank);
      }
    }
    for (std::vector<Place>* const list : {&expected, &activations, &found, &by_rank}) {
      std::ranges::sort(*list);
    }
    EXPECT_EQ(found, expected) << "round " << round;
    EXPECT_EQ(by_rank, ranks > 1 ? activations : std::vector<Place>()) << "round " << round;
    // The first row of a tensor, by restart, step, attempt, rank and seq.
    std::vector<std::string> names, first_names;
    for (const std::uint32_t i : tensors.in_order()) {
      names.push_back(tensors[i].kind + " " + tensors[i].name);
    }
    for (const ReadRow& row : whole.rows) {
      const std::string name = whole.series[row.series].kind + " " + whole.series[row.series].name;
      if (name.starts_with("mg_direction")) continue;
      if (std::ranges::find(first_names, name) == first_names.end()) first_names.push_back(name);
    }
    EXPECT_EQ(std::ranges::is_permutation(names, first_names), true);
    if (ranks == 1) {
      EXPECT_EQ(names, first_names);
    }
    rows += found.size();
    merged += static_cast<std::size_t>(
        std::ranges::count_if(found, [](const Place& one) { return std::get<1>(one) < 0; }));
  }
  EXPECT_GT(rows, 10000u);
  EXPECT_GT(merged, 3000u);
}

}  // namespace
}  // namespace trainmon
