// A run as tables of SQLite.
#pragma once

#include <sqlite3.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "answers/query.h"
#include "answers/query_cells.h"
#include "read/run_stream.h"

namespace trainmon {

// What a statement asks of the rows of one pass.
struct WantedRows {
  std::optional<std::int64_t> rank;
  std::optional<std::int64_t> first_step;
  std::optional<std::int64_t> last_step;
  std::optional<std::string> kind;
  bool operator==(const WantedRows&) const = default;
};

class QueriedRun {
 public:
  QueriedRun(const std::filesystem::path& path, const QueryOptions& options)
      : options_(options), opened_(path, all_of(options)), whole_(open({})) {}

  const RunRows& facts() const { return whole_->facts(); }
  std::vector<Damage>& damage() { return damage_; }
  unsigned threads() const { return threads_with_pieces(options_.threads); }
  std::int64_t row_count() const { return whole_->row_count(); }

  // Those of the rows of a statement, read for the first that asks.
  const std::vector<SampledRow>& samples() {
    if (!samples_) samples_ = read_samples(*whole_, options_.threads, damage_);
    return *samples_;
  }
  std::size_t record_count(QueryRecords records) {
    return records == QueryRecords::samples ? samples().size()
                                            : trainmon::record_count(facts(), records);
  }

  // The same stream for the same question: joins ask often.
  std::shared_ptr<const RunStream> rows(const WantedRows& wanted) {
    if (wanted == WantedRows{}) return whole_;
    if (last_ == nullptr || !(wanted == last_wanted_)) {
      last_ = open(wanted);
      last_wanted_ = wanted;
    }
    return last_;
  }
  // Of no other row of the run: seq counts the rows of a rank and restart.
  std::int64_t row_number(const RowPlace& row) {
    constexpr int kSeqBits = 43;
    const auto next = static_cast<std::uint64_t>(starts_.size());
    const std::uint64_t start = starts_.try_emplace({row.rank, row.restart}, next).first->second;
    const std::uint64_t seq = row.seq & ((std::uint64_t{1} << kSeqBits) - 1);
    return static_cast<std::int64_t>(start << kSeqBits | seq);
  }
  bool has_kind(const std::string& kind) const {
    return std::ranges::find(facts().kinds, kind) != facts().kinds.end();
  }

 private:
  static ReadOptions all_of(const QueryOptions& options) {
    ReadOptions all;
    all.threads = options.threads;
    return all;
  }
  std::shared_ptr<const RunStream> open(const WantedRows& wanted) const {
    ReadOptions options = all_of(options_);
    options.all_restarts = options_.all_restarts;
    if (wanted.rank) options.ranks = {static_cast<int>(*wanted.rank)};
    if (wanted.kind) options.kinds = {*wanted.kind};
    options.first_step = wanted.first_step;
    options.last_step = wanted.last_step;
    return std::make_shared<const RunStream>(opened_, options);
  }

  const QueryOptions& options_;
  const OpenedRun opened_;  // once, for all that a statement asks
  std::shared_ptr<const RunStream> whole_;
  std::shared_ptr<const RunStream> last_;
  WantedRows last_wanted_;
  std::optional<std::vector<SampledRow>> samples_;
  std::map<std::pair<std::int32_t, std::int32_t>, std::uint64_t> starts_;  // numbered as met
  std::vector<Damage> damage_;  // met while rows were read
};

// Adds the tables of docs/formats.md. A statement reads their rows piece by piece; what it asks
// of rank, step and kind decides what is read at all. `run` outlives the database.
void add_query_tables(sqlite3* database, QueriedRun& run);

}  // namespace trainmon
