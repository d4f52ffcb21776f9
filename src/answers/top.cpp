// The largest values over rows that were read.
#include "answers/top.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <optional>

#include "answers/history.h"
#include "base/parallel.h"
#include "read/bad_place.h"
#include "read/merge_rows.h"
#include "read/run_stream.h"
#include "trainmon/first_bad.h"
#include "trainmon/read.h"

namespace trainmon {
namespace {

// What goes before what among ranked rows.
class RankOrder {
 public:
  RankOrder(const RunRows& run, bool smallest) : run_(run), smallest_(smallest) {}

  // Among equals the earliest first: of many NaN the one that was there first leads. Integers come
  // last: they are numbers of tokens and the like.
  bool operator()(const Ranked& a, const Ranked& b) const {
    if (is_integer(a.row) != is_integer(b.row)) return is_integer(b.row);
    if (is_better(a.value, b.value)) return true;
    return !is_better(b.value, a.value) && place(a.row) < place(b.row);
  }
  bool is_better(double a, double b) const {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && !std::isnan(b);
    return smallest_ ? a < b : a > b;
  }

 private:
  bool is_integer(const ReadRow& row) const {
    return run_.series[row.series].dtype >= DType::int64;
  }
  BadPlace place(const ReadRow& row) const { return place_of(run_, row, run_.series[row.series]); }

  const RunRows& run_;
  const bool smallest_;
};

// The best row of each series.
class BestRows {
 public:
  // Which piece of a run a row is in, where it is of one.
  struct Found : Ranked {
    std::size_t piece = 0;
  };

  BestRows(const RunRows& run, const RankOrder& order, Stat stat)
      : order_(order), stat_(stat), best_(run.series.size()), has_(run.series.size()) {}

  void add(const ReadRow& row, std::size_t piece = 0) {
    ++rows_;
    if (row.state.count == 0 || (row.flags & flag::kNotReady) != 0) return;
    if (!is_told(stat_, row.state)) return;
    add(Found{{row, derive(stat_, row.state)}, piece});
  }
  void add(const Found& here) {
    Found& best = best_[here.row.series];
    if (has_[here.row.series] != 0 &&
        (order_.is_better(best.value, here.value) || !order_(here, best))) {
      return;
    }
    best = here;
    has_[here.row.series] = 1;
  }
  void add(const BestRows& other) {
    rows_ += other.rows_;
    for (std::size_t i = 0; i < other.best_.size(); ++i) {
      if (other.has_[i] != 0) add(other.best_[i]);
    }
  }
  std::int64_t rows() const { return rows_; }

  // A tensor that changed its dtype is several series, but one line.
  std::vector<Found> ranked(const RunRows& run) const {
    const TensorNumbers tensors(run.series);
    std::vector<const Found*> best(tensors.count);
    for (std::size_t i = 0; i < best_.size(); ++i) {
      const Found*& so_far = best[tensors.of[i]];
      if (has_[i] != 0 && (so_far == nullptr || order_(best_[i], *so_far))) so_far = &best_[i];
    }
    std::vector<Found> list;
    for (const Found* one : best) {
      if (one != nullptr) list.push_back(*one);
    }
    std::sort(list.begin(), list.end(), order_);
    return list;
  }

 private:
  const RankOrder& order_;
  const Stat stat_;
  std::vector<Found> best_;
  std::vector<char> has_;
  std::int64_t rows_ = 0;
};

// Rows that were read with some columns get the others.
void complete(const RunStream& stream, std::vector<BestRows::Found>& ranked) {
  std::map<std::size_t, std::vector<ReadRow*>> of_pieces;
  for (BestRows::Found& one : ranked) of_pieces[one.piece].push_back(&one.row);
  std::vector<Damage> said_before;
  for (const auto& [piece, rows] : of_pieces) {
    const auto take = [&wanted = rows](const ReadRow& row) {
      for (ReadRow* const one : wanted) {
        if (row.seq == one->seq && row.series == one->series && row.window == one->window) {
          *one = row;
        }
      }
    };
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto is_same = [&](const ReadRow* one) { return one->step == rows[i]->step; };
      if (std::any_of(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(i), is_same)) {
        continue;
      }
      RunStream::Take of_step{take, {}};
      of_step.step = rows[i]->step;
      stream.read(stream.pieces()[piece], of_step, said_before);
    }
  }
}

}  // namespace

std::vector<Ranked> top(const RunRows& rows, Stat stat, std::size_t count, bool smallest) {
  const RankOrder order(rows, smallest);
  BestRows best(rows, order, stat);
  for (const ReadRow& row : rows.rows) best.add(row);
  const std::vector<BestRows::Found> ranked = best.ranked(rows);
  return {ranked.begin(),
          ranked.begin() + static_cast<std::ptrdiff_t>(std::min(count, ranked.size()))};
}

TopOfRun top(const std::filesystem::path& run, const ReadOptions& options, Stat stat,
             std::size_t count, bool smallest) {
  TopOfRun found;
  if (options.merged) {  // which takes all rows of all ranks at once
    found.run = read_run(run, options);
    found.ranked = top(found.run, stat, found.run.series.size(), smallest);
    found.rows = static_cast<std::int64_t>(found.run.rows.size());
    found.partial = partial_rows(found.run);
    found.run.rows = std::vector<ReadRow>();
    found.run.payloads = std::vector<ReadPayload>();
    found.tensors = std::ssize(found.ranked);
    if (found.ranked.size() > count) found.ranked.resize(count);
  } else {
    RunStream stream(run, options);
    const RankOrder order(stream.facts(), smallest);
    BestRows best(stream.facts(), order, stat);
    std::mutex mutex;
    const auto& pieces = stream.pieces();
    std::vector<std::vector<Damage>> damage(pieces.size());
    const unsigned threads = useful_threads(options.threads);
    // Of many rows all columns are read at once, of few once more.
    constexpr std::size_t kFewRows = 64;
    const Stat needed[] = {stat, Stat::count};
    const Columns columns = count > kFewRows ? Columns::all() : columns_of(needed);
    for_each_parallel(std::min<std::size_t>(threads, pieces.size()), threads, [&](std::size_t t) {
      BestRows here(stream.facts(), order, stat);
      for (std::size_t i = t; i < pieces.size(); i += threads) {
        const auto add = [&](const ReadRow& row) { here.add(row, i); };
        stream.read(pieces[i], {add, {}, columns}, damage[i]);
      }
      const std::lock_guard lock(mutex);
      best.add(here);
    });
    std::vector<BestRows::Found> ranked = best.ranked(stream.facts());
    found.tensors = std::ssize(ranked);
    if (ranked.size() > count) ranked.resize(count);
    if (count <= kFewRows) complete(stream, ranked);
    found.ranked.assign(ranked.begin(), ranked.end());
    found.rows = best.rows();
    found.run = stream.take_facts();
    for (const std::vector<Damage>& of_piece : damage) {
      found.run.damage.insert(found.run.damage.end(), of_piece.begin(), of_piece.end());
    }
  }
  return found;
}

}  // namespace trainmon
