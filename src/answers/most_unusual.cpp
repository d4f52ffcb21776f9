// Rows are decoded ahead by several threads and taken by one: a history needs them in order.
#include <algorithm>
#include <map>
#include <mutex>

#include "answers/history.h"
#include "answers/top.h"
#include "base/made_ahead.h"
#include "read/bad_place.h"
#include "read/merge_rows.h"
#include "read/run_stream.h"

namespace trainmon {
namespace {

using Histories = RankHistories<ReadRow>;

class UnusualRows {
 public:
  UnusualRows(const RunRows& run, Stat stat)
      : run_(run), stat_(stat), tensors_(run.series), best_(tensors_.count) {}

  void add(const ReadRow& row, Histories& rank) {
    ++rows_;
    Best& best = best_[tensors_.of[row.series]];
    best.has_rows = true;
    const std::optional<double> value = history_value(row, run_.series[row.series], stat_);
    if (value) rank.add(row.series, row.step, *value, row);
  }
  void end(Histories& rank) {
    rank.end_rank([&](std::uint32_t tensor, const Unusual<ReadRow>& one) {
      const Ranked here{one.row, derive(stat_, one.row.state), one.score, one.usual};
      Best& best = best_[tensor];
      if (std::isnan(best.ranked.score) || leads(here, best.ranked)) best.ranked = here;
    });
  }
  void give_to(TopOfRun& found, std::size_t count) const {
    found.rows = rows_;
    for (const Best& best : best_) {
      if (!std::isnan(best.ranked.score)) {
        found.ranked.push_back(best.ranked);
      } else if (best.has_rows) {
        ++found.unranked;
      }
    }
    std::ranges::sort(found.ranked,
                      [this](const Ranked& a, const Ranked& b) { return leads(a, b); });
    found.tensors = static_cast<std::int64_t>(found.ranked.size());
    if (found.ranked.size() > count) found.ranked.resize(count);
  }

 private:
  struct Best {
    Ranked ranked;
    bool has_rows = false;
  };
  BadPlace place(const ReadRow& row) const { return place_of(run_, row, run_.series[row.series]); }
  bool leads(const Ranked& a, const Ranked& b) const {
    return is_more_unusual(a.score, place(a.row), b.score, place(b.row));
  }

  const RunRows& run_;
  const Stat stat_;
  const TensorNumbers tensors_;
  std::vector<Best> best_;  // by tensor
  std::int64_t rows_ = 0;
};

struct RowsAhead {
  std::vector<ReadRow> rows;
  std::vector<Damage> damage;
};

// Memory of pieces that were taken, for those to come: fresh memory costs more than decoding.
class SpareRows {
 public:
  std::vector<ReadRow> take() {
    const std::lock_guard lock(mutex_);
    if (spare_.empty()) return {};
    std::vector<ReadRow> rows = std::move(spare_.back());
    spare_.pop_back();
    return rows;
  }
  void give_back(std::vector<ReadRow>&& rows) {
    rows.clear();
    const std::lock_guard lock(mutex_);
    spare_.push_back(std::move(rows));
  }

 private:
  std::mutex mutex_;
  std::vector<std::vector<ReadRow>> spare_;
};

TopOfRun most_unusual_merged(const std::filesystem::path& run, const ReadOptions& options,
                             Stat stat, std::size_t count) {
  TopOfRun found;
  found.run = read_run(run, options);
  UnusualRows unusual(found.run, stat);
  std::map<std::int32_t, Histories> ranks;
  for (const ReadRow& row : found.run.rows) {
    unusual.add(row, ranks.try_emplace(row.rank, found.run.series).first->second);
  }
  for (auto& [number, histories] : ranks) unusual.end(histories);
  unusual.give_to(found, count);
  found.partial = partial_rows(found.run);
  found.run.rows = std::vector<ReadRow>();
  found.run.payloads = std::vector<ReadPayload>();
  return found;
}

}  // namespace

TopOfRun most_unusual(const std::filesystem::path& run, const ReadOptions& options, Stat stat,
                      std::size_t count) {
  if (options.merged) return most_unusual_merged(run, options, stat, count);
  TopOfRun found;
  RunStream stream(run, options);
  const std::vector<RunStream::Piece>& pieces = stream.pieces();
  UnusualRows unusual(stream.facts(), stat);
  Histories histories(stream.facts().series);
  std::vector<Damage> damage;
  SpareRows spare;
  {
    MadeAhead<RowsAhead> ahead(
        pieces.size(), threads_with_pieces(options.threads), [&](std::size_t i) {
          RowsAhead made{spare.take(), {}};
          made.rows.reserve(LogIndex::kEnoughRows);
          stream.read(pieces[i], {[&](const ReadRow& row) { made.rows.push_back(row); }, {}},
                      made.damage);
          return made;
        });
    for (std::size_t i = 0; std::optional<RowsAhead> piece = ahead.next(); ++i) {
      if (i > 0 && pieces[i].rank != pieces[i - 1].rank) unusual.end(histories);
      for (const ReadRow& row : piece->rows) unusual.add(row, histories);
      damage.insert(damage.end(), piece->damage.begin(), piece->damage.end());
      spare.give_back(std::move(piece->rows));
    }
  }
  unusual.end(histories);
  unusual.give_to(found, count);
  found.run = stream.take_facts();
  found.run.damage.insert(found.run.damage.end(), damage.begin(), damage.end());
  return found;
}

}  // namespace trainmon
