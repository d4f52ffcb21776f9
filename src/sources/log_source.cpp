// The logs of a run: a part is a rank, its statistics are derived as its rows are read.
#include <algorithm>
#include <stdexcept>

#include "base/parallel.h"
#include "read/run_stream.h"
#include "sources/source.h"

namespace trainmon {
namespace {

std::vector<Stat> chosen_stats(const std::vector<std::string>& names) {
  std::vector<Stat> stats;
  for (const std::string& name : names.empty() ? all_stat_names() : names) {
    const std::optional<Stat> stat = stat_from_name(name);
    if (!stat) throw std::invalid_argument("'" + name + "' is no statistic");
    stats.push_back(*stat);
  }
  return stats;
}

// One line of the table from a row, its statistics in `values`.
class Derive {
 public:
  explicit Derive(const std::vector<Stat>& stats) : stats_(stats), values_(stats.size()) {}
  TableRow operator()(const ReadRow& row, const Series& series) {
    TableRow out;
    static_cast<RowPlace&>(out) = row;
    out.series = &series;
    for (std::size_t i = 0; i < stats_.size(); ++i) {
      values_[i] = derive(stats_[i], row.state);
      if (!is_told(stats_[i], row.state)) out.absent |= std::uint64_t{1} << i;
    }
    // A device that gave no value in time: nothing is known.
    if ((row.flags & flag::kNotReady) != 0) out.absent = (std::uint64_t{1} << stats_.size()) - 1;
    out.values = values_;
    return out;
  }

 private:
  const std::vector<Stat>& stats_;
  std::vector<double> values_;
};

class LogSource final : public Source {
 public:
  LogSource(const SourceOptions& options, RowAccount& account)
      : stats_(chosen_stats(options.stats)), stream_(options.from, options.select) {
    for (const Stat stat : stats_) names_.emplace_back(stat_name(stat));
    for (const RunStream::Piece& piece : stream_.pieces()) {
      if (parts_.empty() || parts_.back().rank != piece.rank) {
        parts_.push_back({piece.rank, "", false, 0});
        pieces_.emplace_back();
      }
      parts_.back().bytes += piece.bytes;
      pieces_.back().push_back(piece);
    }
    account.damage(stream_.facts().damage);
  }

  const std::vector<Part>& parts() const override { return parts_; }
  const std::vector<std::string>& stats() const override { return names_; }
  const RunRows* facts() const override { return &stream_.facts(); }
  std::vector<std::string> kinds() const override { return stream_.facts().kinds; }

  void read(std::size_t part, const Take& take, RowAccount& account) override {
    Derive derived(stats_);
    std::int64_t rows = 0;
    std::vector<Damage> damage;
    RunStream::Take use{
        [&](const ReadRow& row) { take(derived(row, stream_.facts().series[row.series])); }, {}};
    use.columns = columns_of(stats_);
    for (const RunStream::Piece& piece : pieces_[part]) {
      rows += stream_.read(piece, use, damage);
      account.advance(piece.bytes);
    }
    account.read(rows);
    account.damage(damage);
  }

  void read_payloads(const UsePayload& take, RowAccount&) override {
    if (stream_.payload_count() == 0) return;
    std::vector<Damage> said_before;
    for (const std::vector<RunStream::Piece>& pieces : pieces_) {
      for (const RunStream::Piece& piece : pieces) {
        stream_.read(
            piece,
            {[](const ReadRow&) {},
             [&](ReadPayload&& payload) { take(stream_.facts().series[payload.series], payload); }},
            said_before);
      }
    }
  }

 private:
  const std::vector<Stat> stats_;
  RunStream stream_;
  std::vector<std::string> names_;
  std::vector<Part> parts_;
  std::vector<std::vector<RunStream::Piece>> pieces_;  // of parts_, same order
};

// Merging over ranks needs all of them at once.
class MergedSource final : public Source {
 public:
  MergedSource(const SourceOptions& options, RowAccount& account)
      : stats_(chosen_stats(options.stats)), run_(read_run(options.from, options.select)) {
    for (const Stat stat : stats_) names_.emplace_back(stat_name(stat));
    parts_.push_back({-1, "", false, static_cast<std::int64_t>(run_.rows.size())});
    account.damage(run_.damage);
  }
  const std::vector<Part>& parts() const override { return parts_; }
  const std::vector<std::string>& stats() const override { return names_; }
  const RunRows* facts() const override { return &run_; }
  std::vector<std::string> kinds() const override { return run_.kinds; }
  void read(std::size_t, const Take& take, RowAccount& account) override {
    Derive derived(stats_);
    for (const ReadRow& row : run_.rows) take(derived(row, run_.series[row.series]));
    account.read(static_cast<std::int64_t>(run_.rows.size()));
    account.advance(parts_[0].bytes);
  }
  void read_payloads(const UsePayload& take, RowAccount&) override {
    for (const ReadPayload& payload : run_.payloads) take(run_.series[payload.series], payload);
  }

 private:
  const std::vector<Stat> stats_;
  const RunRows run_;
  std::vector<std::string> names_;
  std::vector<Part> parts_;
};

}  // namespace

std::unique_ptr<Source> open_log_source(const SourceOptions& options, RowAccount& account) {
  if (options.select.merged) return std::make_unique<MergedSource>(options, account);
  return std::make_unique<LogSource>(options, account);
}

}  // namespace trainmon
