// A run of which little is decoded gives what the same run gives when everything is.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include "read/batch_places.h"
#include "read/compact.h"
#include "read/run_stream.h"
#include "written_run.h"

namespace trainmon {
namespace {

Series of_optimizer(std::string kind, std::string name, int optimizer) {
  Series series;
  series.kind = std::move(kind);
  series.name = std::move(name);
  series.optimizer = optimizer;
  return series;
}

// Two optimizers whose windows are of different steps, skipped windows, steps gone through twice,
// batches of one window and of many, of rows and of outcomes alone, and few bad rows.
void write_random(const std::filesystem::path& run, std::mt19937& random) {
  const auto below = [&](std::int64_t end) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(end));
  };
  for (const int number : {0, 1}) {
    for (const int restart : {0, 1}) {
      const std::string start = std::to_string(restart * below(30));
      WrittenRank rank(run, number, restart, "\"start_steps\": [" + start + ", 500]", 20000);
      std::vector<SeriesId> series;
      for (const int optimizer : {0, 1}) {
        for (const char* const name : {"a", "b.c", "b.d"}) {
          series.push_back(rank.add(of_optimizer("grad_reduced", name, optimizer)));
          series.push_back(rank.add(of_optimizer("exp_avg", name, optimizer)));
        }
      }
      std::int64_t step = restart * below(30);
      const std::int64_t is_long = below(3);  // then a batch holds more windows than a few
      for (std::int64_t window = 0; window < 90; ++window) {
        for (const SeriesId one : series) {
          if (below(4) == 0) continue;
          rank.row(one, window - below(2),
                   below(300) == 0 ? WrittenRank::nan() : WrittenRank::one(0.5));
        }
        if (is_long == 0 && window != 89) continue;
        if (below(3) != 0) rank.write();
        const Fate fate = below(5) == 0 ? Fate::skipped : Fate::taken;
        rank.outcome(window, step, fate);
        step += fate == Fate::taken ? 1 : 0;
        if (below(2) != 0) rank.write();
      }
      rank.write();
    }
  }
}

using Place = std::tuple<int, int, std::int64_t, std::uint64_t, std::string, std::int64_t, bool>;
Place place_of(const ReadRow& row, const std::vector<Series>& series) {
  return {row.restart,
          row.rank,
          row.step,
          row.seq,
          series[row.series].kind + " " + series[row.series].name,
          row.window,
          is_bad(row)};
}

ReadOptions random_options(std::mt19937& random) {
  ReadOptions options;
  options.all_restarts = random() % 2 == 0;
  if (random() % 2 == 0) options.first_step = static_cast<std::int64_t>(random() % 100);
  if (random() % 2 == 0) options.last_step = static_cast<std::int64_t>(random() % 600);
  if (random() % 3 == 0) options.kinds = {"exp_avg"};
  if (random() % 3 == 0) options.include = {"b.**"};
  if (random() % 4 == 0) options.ranks = {1};
  return options;
}

TEST(Pieces, WhatIsLeftOutBeforeDecodingIsWhatWouldBeLeftOutAfter) {
  std::mt19937 random(5);
  std::int64_t selected = 0, bad_rows = 0;
  for (int round = 0; round < 40; ++round) {
    const Scratch scratch;
    write_random(scratch.path(), random);
    // Nothing of this may depend on how batches lie in frames.
    if (round % 2 != 0) compact(scratch.path(), [](std::int64_t, std::int64_t) { return true; });
    const ReadOptions options = random_options(random);
    const RunStream stream(scratch.path(), options);
    const std::vector<Series>& series = stream.facts().series;
    std::vector<Damage> damage;
    // Every row, from readers that were asked for everything.
    ReadOptions everything;
    everything.all_restarts = options.all_restarts;
    const RunRows whole = read_run(scratch.path(), everything);
    std::vector<Place> expected, bad;
    const std::int64_t one_step = static_cast<std::int64_t>(random() % 60);
    std::vector<Place> of_step;
    for (const ReadRow& row : whole.rows) {
      const Series& of = whole.series[row.series];
      if (row.step < options.first_step.value_or(row.step)) continue;
      if (row.step > options.last_step.value_or(row.step)) continue;
      if (!options.kinds.empty() && of.kind != "exp_avg") continue;
      if (!options.include.empty() && !of.name.starts_with("b.")) continue;
      if (!options.ranks.empty() && row.rank != 1) continue;
      expected.push_back(place_of(row, whole.series));
      if (is_bad(row)) bad.push_back(expected.back());
      if (row.step == one_step) of_step.push_back(expected.back());
    }
    const auto read = [&](RunStream::Take take, std::vector<Place>& found, bool only_bad) {
      std::int64_t rows = 0;
      take.row = [&](const ReadRow& row) {
        if (!only_bad || is_bad(row)) found.push_back(place_of(row, series));
      };
      for (const RunStream::Piece& piece : stream.pieces()) {
        rows += stream.read(piece, take, damage);
      }
      std::ranges::sort(found);
      return rows;
    };
    std::ranges::sort(expected);
    std::ranges::sort(bad);
    std::ranges::sort(of_step);
    std::vector<Place> found;
    EXPECT_EQ(read({}, found, false), std::ssize(expected));
    EXPECT_EQ(found, expected);
    RunStream::Take only_bad;
    only_bad.only_bad_batches = true;
    found.clear();
    EXPECT_EQ(read(only_bad, found, true), std::ssize(expected)) << "rows not given count, too";
    EXPECT_EQ(found, bad);
    RunStream::Take one;
    one.step = one_step;
    found.clear();
    EXPECT_EQ(read(one, found, false), std::ssize(of_step));
    EXPECT_EQ(found, of_step);
    found.clear();
    std::int64_t before = std::numeric_limits<std::int64_t>::min();
    for (const RunStream::StepPiece& piece : stream.pieces_by_step(50)) {
      EXPECT_LE(before, piece.first_step);
      before = piece.first_step;
      RunStream::Take take;
      take.row = [&](const ReadRow& row) {
        EXPECT_LE(piece.first_step, row.step) << "a step would be taken for whole";
        found.push_back(place_of(row, series));
      };
      stream.read(piece, take, damage);
    }
    std::ranges::sort(found);
    EXPECT_EQ(found, expected);
    EXPECT_TRUE(damage.empty());
    selected += std::ssize(expected);
    bad_rows += std::ssize(bad);
  }
  EXPECT_GT(selected, 10000);
  EXPECT_GT(bad_rows, 50);
}

TEST(Pieces, SegmentsOfManyRowsAreSeveralAndGiveEachRowOnce) {
  const Scratch scratch;
  WrittenRank rank(scratch.path(), 0, 0, "\"start_steps\": [0]", 1 << 26);
  const SeriesId w = rank.add("grad_reduced", "w");
  constexpr std::int64_t kRows = 200000;
  for (std::int64_t i = 0; i < kRows; ++i) {
    rank.row(w, i / 100, WrittenRank::one(static_cast<double>(i)));
    if (i % 1000 == 999) rank.write();
  }
  const RunStream stream(scratch.path(), {});
  EXPECT_EQ(stream.pieces().size(), 4u) << "of 65536 rows and no more than a batch beyond";
  std::vector<Damage> damage;
  double expected = 0;
  for (const RunStream::Piece& piece : stream.pieces()) {
    RunStream::Take take;
    take.row = [&](const ReadRow& row) { EXPECT_EQ(row.state.sum, expected++); };
    stream.read(piece, take, damage);
  }
  EXPECT_EQ(expected, kRows);
  EXPECT_TRUE(damage.empty());
}

TEST(Pieces, ColumnsThatWereNotChosenStayEmpty) {
  const Scratch scratch;
  WrittenRank rank(scratch.path(), 0, 0);
  const SeriesId w = rank.add("grad_reduced", "w");
  for (int i = 0; i < 8; ++i) {
    rank.row(w, 0, WrittenRank::one(0.1 * i - 0.3)).key.call = i;
  }
  rank.write();
  const RunStream stream(scratch.path(), {});
  std::vector<Damage> damage;
  for (const StatDefinition& definition : stat_table()) {
    RunStream::Take take;
    take.columns = columns_of(definition.stat);
    int at = 0;
    take.row = [&](const ReadRow& row) {
      const RowState whole = WrittenRank::one(0.1 * at - 0.3);
      EXPECT_EQ(derive(definition.stat, row.state), derive(definition.stat, whole))
          << definition.name;
      EXPECT_EQ(row.call, at++);
      if (definition.stat == Stat::norm) {
        EXPECT_EQ(row.state.count, 0);
        EXPECT_EQ(row.state.sum, 0.0);
      }
      if (definition.stat == Stat::min) {
        EXPECT_EQ(row.state.sum_sq, 0.0);
      }
    };
    stream.read(stream.pieces().at(0), take, damage);
    EXPECT_EQ(at, 8);
  }
  EXPECT_TRUE(damage.empty());
}

// Of any numbers, for a forged index may have them, and for all parts of the list.
TEST(BatchPlaces, GiveBackWhatTheyWereMadeOf) {
  RandomRecords random(3);
  for (std::size_t count : {0, 1, 15, 16, 17, 100}) {
    std::vector<BatchPlace> places(count);
    for (BatchPlace& place : places) {
      place.offset = random.integer();
      place.stored = static_cast<std::uint32_t>(random.integer());
      place.number = static_cast<std::uint64_t>(random.integer());
      place.is_believed = random.below(2) == 0;
      place.facts = {random.integer(), random.integer(),     random.integer(),
                     random.integer(), random.below(2) == 0, random.below(3)};
    }
    const BatchPlaces packed(places);
    ASSERT_EQ(packed.size(), count);
    for (std::size_t first = 0; first <= count; first += 7) {
      for (std::size_t end = first; end <= count; end += 5) {
        std::size_t next = first;
        packed.for_each(first, end, [&](std::size_t number, const BatchPlace& place) {
          const BatchPlace& from = places[number];
          EXPECT_EQ(number, next++);
          EXPECT_EQ(std::tie(place.offset, place.stored, place.number, place.is_believed),
                    std::tie(from.offset, from.stored, from.number, from.is_believed));
          const BatchFacts &a = place.facts, &b = from.facts;
          EXPECT_EQ(std::tie(a.rows, a.payloads, a.first_window, a.last_window),
                    std::tie(b.rows, b.payloads, b.first_window, b.last_window));
          EXPECT_EQ(std::tie(a.has_bad_rows, a.series), std::tie(b.has_bad_rows, b.series));
          return true;
        });
        EXPECT_EQ(next, end);
      }
    }
    int calls = 0;
    packed.for_each(0, count, [&](std::size_t, const BatchPlace&) { return ++calls < 2; });
    EXPECT_EQ(calls, std::min<int>(2, static_cast<int>(count)));
  }
}

}  // namespace
}  // namespace trainmon
