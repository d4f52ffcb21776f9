// Rows of a step become lines as they come; both files are written at the end of the step.
#include "sinks/grad_stats.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <utility>

#include "base/text.h"
#include "sinks/csv_text.h"
#include "sinks/live_table.h"
#include "sinks/shared_csv.h"

namespace trainmon {
namespace {

constexpr std::size_t kMostWaiting = std::size_t{64} << 20;  // bytes of lines not yet written

class GradStats final : public Sink {
 public:
  explicit GradStats(const GradStatsOptions& options)
      : stats_(options.stats), interval_(std::max<std::int64_t>(options.write_interval, 1)) {
    std::string header;
    csv_text::Line line(header);
    line.field("step").field("rank").field("param_name");
    for (const Stat stat : stats_) line.field(stat_name(stat));
    header += kSharedLineEnd;
    local().path = options.local;
    global().path = options.global;
    for (SharedCsv& file : files_) file.header = header;
    append_together(files_);
  }

  std::string_view name() const override { return "grad_stats"; }

  void open(const RunInfo& run, const SeriesTable& series) override {
    rank_ = run.rank;
    series_ = &series;
    live_ = LiveTable(run, series);
  }

  void write(const RecordBatch& batch) override {
    live_.learn(batch);
    const std::array before = {local().text.size(), global().text.size()};
    const std::int64_t waiting_before = waiting_;
    std::int64_t no_file = std::ssize(batch.payloads);
    std::int64_t not_ready = 0;
    for (const Row& row : batch.rows) {
      const Series& series = series_->at(row.key.series);
      if (series.kind != kind::kGradMicro && series.kind != kind::kGradReduced) {
        ++no_file;
      } else if ((row.key.flags & flag::kNotReady) != 0) {
        ++not_ready;
      } else {
        append(series.kind == kind::kGradMicro ? local() : global(), series, row);
        ++waiting_;
      }
    }
    try {
      if (is_due(batch)) write_out();
    } catch (...) {
      for (std::size_t i = 0; i < files_.size(); ++i) files_[i].text.resize(before[i]);
      waiting_ = waiting_before;
      throw;
    }
    no_file_ += no_file;
    not_ready_ += not_ready;
  }

  // Rows of a step that never ends, in a hung collective say, are there to be read.
  void flush() override { write_out(); }

  void close() override {
    try {
      write_out();
    } catch (...) {
      not_written_ += std::exchange(waiting_, 0);
      for (SharedCsv& file : files_) file.text.clear();
      throw;
    }
  }

  std::map<std::string, std::int64_t> rows_left_out() const override {
    std::map<std::string, std::int64_t> rows;
    if (no_file_ > 0) rows["no_file_for_kind"] = no_file_;
    if (not_ready_ > 0) rows["not_ready"] = not_ready_;
    if (not_written_ > 0) rows["not_written"] = not_written_;
    return rows;
  }

 private:
  SharedCsv& local() { return files_[0]; }
  SharedCsv& global() { return files_[1]; }

  void append(SharedCsv& file, const Series& series, const Row& row) {
    csv_text::Line line(file.text);
    line.number(live_.place(series.optimizer, row.key.window).step);
    // No line end may be inside a line: one that a kill tore is found by where the last one is.
    line.number(std::int64_t{rank_}).field(printable(series.name));
    for (const Stat stat : stats_) line.number(derive(stat, row.state));
    file.text += kSharedLineEnd;
  }

  bool is_due(const RecordBatch& batch) const {
    if (local().text.size() + global().text.size() > kMostWaiting) return true;
    return std::ranges::any_of(batch.outcomes, [&](const Outcome& outcome) {
      return outcome.fate == Fate::taken && (outcome.step + 1) % interval_ == 0;
    });
  }
  const SharedCsv& local() const { return files_[0]; }
  const SharedCsv& global() const { return files_[1]; }

  void write_out() {
    if (local().text.empty() && global().text.empty()) return;
    append_together(files_);
    waiting_ = 0;
  }

  const std::vector<Stat> stats_;
  const std::int64_t interval_;
  std::array<SharedCsv, 2> files_;
  int rank_ = 0;
  const SeriesTable* series_ = nullptr;
  LiveTable live_;
  std::int64_t waiting_ = 0;  // rows taken, in no file yet
  std::atomic<std::int64_t> no_file_{0};
  std::atomic<std::int64_t> not_ready_{0};
  std::atomic<std::int64_t> not_written_{0};
};

}  // namespace

std::unique_ptr<Sink> make_grad_stats_sink(const GradStatsOptions& options) {
  return std::make_unique<GradStats>(options);
}

}  // namespace trainmon
