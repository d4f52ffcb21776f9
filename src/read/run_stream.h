// A run read in two passes: first everything but the rows, then the rows, piece by piece, each with
// its step. Memory does not grow with the number of rows.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "read/completeness.h"
#include "read/earlier_findings.h"
#include "read/joined_alerts.h"
#include "read/log.h"
#include "read/log_index.h"
#include "read/missing_ranks.h"
#include "read/open_logs.h"
#include "read/restarts.h"
#include "read/row_filter.h"
#include "read/run_layout.h"
#include "read/series_index.h"
#include "read/start_numbers.h"
#include "trainmon/read.h"

namespace trainmon {

// So many threads as were asked for, as of useful_threads(), for those who keep the rows of
// pieces. They are four at most, for each has some 65,000 rows in memory.
unsigned threads_with_pieces(unsigned asked);

class RunStream {
 public:
  // Throws as read_run().
  RunStream(const std::filesystem::path& run, const ReadOptions& options)
      : RunStream(OpenedRun(run, options), options) {}
  // All ranks that `options` ask for were opened.
  RunStream(OpenedRun opened, const ReadOptions& options);

  // All that read_run() gives, but for rows and payloads; series are those of the rows selected.
  const RunRows& facts() const { return facts_; }
  RunRows take_facts() { return std::move(facts_); }

  // Some batches of one rank and restart each: by rank, restart, and in the order of writing.
  struct Piece : LogIndex::Piece {
    int rank = 0;
    int restart = 0;
    std::size_t directory = 0;
  };
  const std::vector<Piece>& pieces() const { return pieces_; }
  std::span<const Piece> pieces_of(int rank) const;
  // The same rows in pieces of so many or somewhat more, by the least step that one of their rows
  // may have. Whoever has read the pieces up to a step has all of its rows.
  struct StepPiece : Piece {
    std::int64_t first_step = 0;
  };
  std::vector<StepPiece> pieces_by_step(std::int64_t rows) const;
  std::size_t log_count() const { return directories_.size(); }
  // The step with which one rank began one of its starts.
  struct Start {
    int rank = 0;
    int restart = 0;
    std::int32_t optimizer = 0;
    std::int64_t step = 0;
  };
  // Of the optimizers that went on from there.
  std::vector<Start> starts() const;
  // By start: ranks that recorded it or were to do so. A run may go on with fewer processes.
  std::map<int, std::set<int>> ranks_of_starts() const;
  // start_numbers() of them.
  StartNumbers start_numbers() const;
  // One rank and restart of a run that grows, its batches in the order of writing.
  struct Place {
    RankDirectory directory;
    std::string origin;       // differs when another process wrote it
    bool is_over = false;     // there is a newer restart of this rank
    std::size_t batches = 0;  // so many there are
    // Of so many it is known what became of all windows of their rows, or it will never be known.
    std::size_t settled = 0;
  };
  // `from` of each place are known to be settled; none: nothing is known.
  std::vector<Place> places(const std::vector<std::size_t>& from) const;
  // The number that the writer gave a batch; batches are counted from 0. 0: there is none.
  std::uint64_t batch_number(std::size_t place, std::size_t batch) const;
  // Those between two batches of a place.
  std::vector<Piece> pieces_between(std::size_t place, std::size_t first, std::size_t end) const;
  // Of each restart that is not the newest, of which of its steps rows are selected: no two
  // selections have the same.
  std::string selected_before() const;
  // Of all series, selected or not.
  std::int64_t payload_count() const { return payloads_; }
  std::int64_t row_count() const { return rows_; }  // payloads among them

  // The selected rows of a piece in the order of the log; several pieces may be read at a time.
  struct Take {
    std::function<void(const ReadRow&)> row;
    std::function<void(ReadPayload&&)> payload;  // empty: not asked for
    Columns columns = Columns::all();            // others are as in ReadRow{}
    // In place of `row`, of rows that have a check; empty: checks are not decoded.
    std::function<void(const ReadRow&, const RowCheck&)> checked = {};
    // Before `row`, of rows that have a sample; empty: samples are not decoded.
    std::function<void(const ReadRow&, const RowSample&)> sampled = {};
    std::optional<std::int64_t> step = {};  // this one alone
    // Rows of batches without a NaN or an infinity are counted, not given.
    bool only_bad_batches = false;
    bool gives(const BatchFacts& batch) const { return !only_bad_batches || batch.has_bad_rows; }
  };
  // Returns how many rows are selected, given or not.
  std::int64_t read(const Piece& piece, const Take& take, std::vector<Damage>& damage) const;
  // Gives back the memory of what is known of a rank's logs. None of its pieces is read afterwards.
  void forget(int rank);

 private:
  // The wanted series of a log.
  struct Wanted {
    std::map<SeriesId, std::uint32_t> unified;
    std::set<std::int32_t> optimizers;
    std::uint64_t series = 0;  // their bits, as of BatchFacts
  };
  struct Directory : OpenedLog {
    std::shared_ptr<const Wanted> wanted;  // of logs with the same series it is one
    bool wants_all() const { return wanted->unified.size() == log->contents().series.size(); }
  };
  void find_missing(const std::vector<RankDirectory>& directories);
  void add(OpenedLog&& opened, bool is_newest);
  void hold_against_health(const RankDirectory& place, const Health& health,
                           const LogContents& log);
  void look_for_others(const RankDirectory& place, const std::optional<StoredHealth>& stored);
  void note_steps(const OpenedLog& directory);
  void suggest_names();
  // How many of a batch's windows are selected.
  enum class Selected : std::uint8_t { none, some, all };
  Selected selected(const Directory& directory, const LogIndex::BatchFacts& batch,
                    std::optional<std::int64_t> step) const;
  bool takes(const Directory& directory, const Outcome& outcome) const;
  std::shared_ptr<const Wanted> wanted_of(const LogSeries::Map& all);
  void take_small(Directory& directory, const RecordBatch& batch);

  const ReadOptions options_;
  const RowFilter filter_;
  // Of a series, and of a list; the same shape is kept once. Any thread.
  const Shape* kept(const Shape& shape) const;

  RunRows facts_;
  mutable std::mutex shapes_mutex_;        // for facts_.shapes
  std::vector<const Shape*> full_shapes_;  // of facts_.series, same order
  ExpectedRanks expected_;
  SeriesIndex index_;
  const std::shared_ptr<Allowance> allowance_;
  std::vector<Directory> directories_;
  std::vector<Piece> pieces_;
  std::int64_t rows_ = 0;
  std::int64_t payloads_ = 0;
  JoinedAlerts alerts_;
  EarlierFindings earlier_;
  FollowedKills killed_;
  Restarts restarts_;             // of ranks with several, by rows and outcomes
  Restarts restarts_of_scalars_;  // a step may end after its loss was logged, without a row
};

}  // namespace trainmon
