// Pieces of logs are read in the order of the steps that they begin with. A step is whole when no
// piece that is not read can have a row of it.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <utility>

#include "base/made_ahead.h"
#include "compare/step_rows.h"
#include "read/columns.h"
#include "read/merge_rows.h"
#include "trainmon/stat.h"

namespace trainmon {
namespace {

ComparedValues values_of(const ReadRow& row) {
  ComparedValues values;
  // A device that gave no value in time: nothing is known. Estimates of two runs may differ by as
  // much as their errors: they are not compared.
  const bool is_ready = (row.flags & flag::kNotReady) == 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool is_exact = !row.state.is_estimate() || kComparedStats[i] == Stat::count;
    values[i] = is_ready && is_exact ? derive(kComparedStats[i], row.state) : std::nan("");
  }
  return values;
}

class LogSteps final : public StepReader {
 public:
  LogSteps(const RunStream& stream, TensorTable& tensors, unsigned threads)
      : stream_(stream),
        tensors_(tensors),
        merger_(stream.facts().series, stream.facts().shapes),
        threads_(threads) {
    const RunRows& facts = stream.facts();
    has_shares_ = facts.ranks.size() > 1 || facts.missing.world_size > 1;
    std::set<int> ranks;
    for (const RunStream::Piece& piece : stream.pieces()) ranks.insert(piece.rank);
    for (std::uint32_t i = 0; i < facts.series.size(); ++i) {
      uses_.push_back(use_of(facts.series[i], ranks.size() < 2 && !merger_.has_relatives(i)));
    }
    const auto count = std::max<std::int64_t>(1, static_cast<std::int64_t>(ranks.size()));
    pieces_ = stream.pieces_by_step(std::max(kRowsOfPieces / count, kLeastRows));
    damage_.resize(pieces_.size());
    columns_ = columns_of(kComparedStats);
  }

  void rewind() override {
    next_ = 0;
    waiting_.clear();
    ranks_.clear();
    for (std::vector<Damage>& one : damage_) one.clear();
    read_.reset();
    read_.emplace(pieces_.size(), threads_, [this](std::size_t i) { return read(i); });
  }

  bool next(StepRows& rows) override {
    while (next_ < pieces_.size() &&
           (waiting_.empty() || pieces_[next_].first_step <= waiting_.begin()->first)) {
      take(*read_->next(), next_);
      ++next_;
    }
    if (waiting_.empty()) return false;
    Waiting& first = waiting_.begin()->second;
    merge(*first.to_merge, first.rows);
    rows = std::move(first.rows);
    rows.step = waiting_.begin()->first;
    waiting_.erase(waiting_.begin());
    return true;
  }

  void tell(RowAccount& account) const override {
    // In the order of writing, which pieces by step are not in.
    std::vector<std::pair<std::array<std::size_t, 3>, std::size_t>> order;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      const RunStream::StepPiece& piece = pieces_[i];
      order.push_back({{piece.directory, piece.segment, piece.first}, i});
    }
    std::ranges::sort(order);
    for (const auto& [place, i] : order) account.damage(damage_[i]);
  }

 private:
  static constexpr std::int64_t kRowsOfPieces = std::int64_t{1} << 15;  // of all ranks
  static constexpr std::int64_t kLeastRows = 1 << 8;

  struct Use {
    std::uint32_t tensor = 0;
    bool is_left_out = false;
    bool is_activation = false;
    bool is_alone = false;  // nothing is merged with its rows
    Replication replication = Replication::independent;
    DType dtype = DType::float32;
  };
  // The rows of a step in a piece.
  struct OfStep {
    StepRows rows;
    std::vector<ReadRow> to_merge;
  };
  // The rows of a step, as far as they were read.
  struct Waiting {
    StepRows rows;
    std::optional<RowsToMerge> to_merge;
  };
  // The first row of a tensor.
  struct Met {
    FirstPlace place{};
    DType dtype = DType::float32;
  };
  // What a piece holds; any thread makes one.
  struct PieceSteps {
    std::map<std::int64_t, OfStep> steps;
    std::map<std::uint32_t, Met> met;  // by tensor
    std::set<std::int32_t> ranks;      // of activations
    std::vector<Damage> damage;
    OfStep* here = nullptr;  // of the step whose row was read last
    std::int64_t step = 0;
  };

  template <typename Row>
  static void append(std::vector<Row>& to, std::vector<Row>& from) {
    if (to.empty()) return to.swap(from);
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  }

  Use use_of(const Series& series, bool has_no_relatives) {
    Use use;
    use.is_left_out = is_left_out(series.kind);
    if (use.is_left_out) return use;
    use.tensor = tensors_.add(series);
    use.is_activation = is_of_module(series.kind);
    use.replication = series.replication;
    use.dtype = series.dtype;
    use.is_alone = has_no_relatives || (series.replication != Replication::identical &&
                                        series.replication != Replication::disjoint);
    return use;
  }

  PieceSteps read(std::size_t number) const {
    PieceSteps piece;
    RunStream::Take take{[&](const ReadRow& row) {
                           const Use& use = uses_[row.series];
                           if (use.is_left_out) return;
                           if (piece.here == nullptr || row.step != piece.step) {
                             piece.here = &piece.steps[row.step];
                           }
                           piece.step = row.step;
                           take_row(row, use, piece);
                         },
                         {}};
    take.columns = columns_;
    stream_.read(pieces_[number], take, piece.damage);
    return piece;
  }

  // In the order of pieces, whoever made them.
  void take(PieceSteps&& piece, std::size_t number) {
    for (auto& [step, more] : piece.steps) {
      Waiting& waiting = waiting_[step];
      if (!waiting.to_merge) waiting.to_merge.emplace(merger_);
      append(waiting.rows.rows, more.rows.rows);
      append(waiting.rows.merged, more.rows.merged);
      append(waiting.rows.by_rank, more.rows.by_rank);
      for (const ReadRow& row : more.to_merge) waiting.to_merge->add(row);
    }
    for (const auto& [tensor, met] : piece.met) tensors_.met(tensor, met.place, met.dtype);
    ranks_.merge(piece.ranks);
    damage_[number] = std::move(piece.damage);
  }

  void take_row(const ReadRow& row, const Use& use, PieceSteps& piece) const {
    OfStep& to = *piece.here;
    const bool is_twice = use.is_activation && has_shares_;
    if (is_twice) {
      put(row, use, to.rows.by_rank);
      piece.ranks.insert(row.rank);
    }
    if (!use.is_alone) {
      to.to_merge.push_back(row);
      return;
    }
    put_merged(row, use, is_twice ? to.rows.merged : to.rows.rows, piece);
  }

  // A row that nothing is merged with.
  static void put_merged(const ReadRow& row, const Use& use, std::vector<ComparedRow>& to,
                         PieceSteps& piece) {
    put(row, use, to);
    ComparedRow& out = to.back();
    if (use.replication == Replication::identical) out.rank = -1;
    if (use.replication == Replication::disjoint) {
      ReadRow whole = row;
      whole.state = RowState();
      trainmon::merge(whole.state, row.state);
      out.values = values_of(whole);
      out.rank = -1;
    }
    if (use.is_activation && out.rank >= 0) piece.ranks.insert(out.rank);
    const FirstPlace place = place_of(row, out.rank);
    const auto [known, is_new] = piece.met.try_emplace(use.tensor, Met{place, use.dtype});
    if (!is_new && place < known->second.place) known->second = {place, use.dtype};
  }

  static void put(const ReadRow& row, const Use& use, std::vector<ComparedRow>& to) {
    ComparedRow& out = to.emplace_back();
    out.tensor = use.tensor;
    out.attempt = row.attempt;
    out.rank = row.rank;
    out.accum = row.accum;
    out.call = row.call;
    out.seq = row.seq;
    out.values = values_of(row);
  }

  static FirstPlace place_of(const ReadRow& row, std::int32_t rank) {
    return {row.restart, row.step, row.attempt, rank, static_cast<std::int64_t>(row.seq)};
  }

  const Use& use_of_merged(std::uint32_t series) {
    if (series < uses_.size()) return uses_[series];
    // Wholes are series that the merger has added.
    while (uses_.size() + whole_uses_.size() <= series) {
      const std::size_t next = uses_.size() + whole_uses_.size();
      whole_uses_.push_back(use_of(merger_.series(static_cast<std::uint32_t>(next)), false));
    }
    return whole_uses_[series - uses_.size()];
  }

  void merge(RowsToMerge& to_merge, StepRows& rows) {
    std::vector<ReadRow> parts;
    to_merge.take(parts);
    merged_.clear();
    merger_.merge(parts, merged_);
    for (const ReadRow& row : merged_) {
      const Use& use = use_of_merged(row.series);
      put(row, use, use.is_activation && has_shares_ ? rows.merged : rows.rows);
      if (use.is_activation && row.rank >= 0) ranks_.insert(row.rank);
      tensors_.met(use.tensor, place_of(row, row.rank), use.dtype);
    }
  }

  const RunStream& stream_;
  TensorTable& tensors_;
  RankMerger merger_;
  bool has_shares_ = false;      // activations are wanted as every rank saw them, too
  std::vector<Use> uses_;        // of series; all threads read them
  std::vector<Use> whole_uses_;  // of series behind those
  Columns columns_;
  std::vector<RunStream::StepPiece> pieces_;
  std::size_t next_ = 0;                     // of pieces_
  std::vector<std::vector<Damage>> damage_;  // of pieces_
  std::map<std::int64_t, Waiting> waiting_;  // by step
  std::vector<ReadRow> merged_;
  const unsigned threads_;
  std::optional<MadeAhead<PieceSteps>> read_;  // uses the members before it
};

}  // namespace

std::unique_ptr<StepReader> log_steps(const RunStream& stream, TensorTable& tensors,
                                      unsigned threads) {
  return std::make_unique<LogSteps>(stream, tensors, threads);
}

}  // namespace trainmon
