// Holds the rows of a step until it was taken, then gives each its place in one of the files.
#include "sinks/msprobe.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "model/histogram.h"
#include "sinks/msprobe_csv.h"
#include "sinks/msprobe_events.h"
#include "sinks/msprobe_rows.h"
#include "sinks/msprobe_step_files.h"
#include "sinks/msprobe_v1.h"
#include "sinks/msprobe_v2.h"
#include "trainmon/error.h"

namespace trainmon {
namespace {

using namespace msprobe_csv;

constexpr std::size_t kMostMoved = 64;
constexpr std::size_t kMostHeldRows = 1 << 20;  // of steps without an outcome, 0.2 GB

using Rows = std::vector<Row>;
using Drawn = std::vector<std::pair<SeriesId, Histogram>>;

// What is held by window, back to as much as there was before.
template <typename Held>
std::map<std::int64_t, std::size_t> sizes(const Held& held) {
  std::map<std::int64_t, std::size_t> counts;
  for (const auto& [window, items] : held) counts[window] = items.size();
  return counts;
}
template <typename Held>
void cut_back(Held& held, const std::map<std::int64_t, std::size_t>& before) {
  for (auto at = held.begin(); at != held.end();) {
    const auto known = before.find(at->first);
    at->second.resize(known == before.end() ? 0 : known->second);
    at = at->second.empty() ? held.erase(at) : std::next(at);
  }
}

class MsprobeFiles final : public MsprobeSink {
 public:
  explicit MsprobeFiles(const MsprobeOptions& options) : options_(options) {
    ops_[std::numeric_limits<std::int64_t>::min()] = options.ops;
    options_.grad_acc_steps = std::max<std::int64_t>(options.grad_acc_steps, 1);
    options_.steps_per_file = std::max<std::int64_t>(options.steps_per_file, 1);
  }

  std::string_view name() const override {
    if (!options_.files) return "msprobe_api";
    return options_.events ? "msprobe_tensorboard" : "msprobe_csv";
  }

  void open(const RunInfo& run, const SeriesTable& series) override {
    const std::lock_guard lock(mutex_);
    run_ = run;
    series_ = &series;
    events_.open(run, options_.micro_gradients);
    files_.open(run.directory, options_.first_step, options_.steps_per_file);
  }

  void write(const RecordBatch& batch) override {
    const std::lock_guard lock(mutex_);
    if (waiting_after(batch) > kMostHeldRows) {
      throw SinkError("too_many_rows", "more rows wait for the end of their step than are held");
    }
    // Taken back as a whole if the files cannot be written.
    const auto before = sizes(windows_);
    const auto drawn_before = sizes(drawn_);
    std::vector<std::pair<std::int64_t, bool>> ended;
    std::optional<std::map<std::int64_t, Rows>> saved;  // where rows move between windows
    if (std::ranges::any_of(batch.outcomes, leaves_a_forward)) saved = windows_;
    try {
      for (const Row& row : batch.rows) hold(row);
      for (const Payload& payload : batch.payloads) hold(payload);
      if (options_.files) write_stacks(batch);
      for (const Outcome& outcome : batch.outcomes) {
        if (outcome.optimizer != 0) continue;
        if (leaves_a_forward(outcome)) move_forward(outcome);
        if (!windows_.contains(outcome.window) && !drawn_.contains(outcome.window)) continue;
        const bool taken = outcome.fate == Fate::taken;
        if (taken && options_.events) {
          add_events(outcome, batch.time_ns);
        } else if (taken && windows_.contains(outcome.window)) {
          write_step(windows_.at(outcome.window), outcome.step);
        }
        ended.emplace_back(outcome.window, taken);
      }
      events_.write();
      not_ready_ += std::exchange(unknown_, 0);
    } catch (...) {
      files_.undo();
      events_.clear();
      unknown_ = 0;
      cut_back(drawn_, drawn_before);
      if (saved) {
        windows_ = std::move(*saved);
        throw;
      }
      cut_back(windows_, before);
      throw;
    }
    files_.keep();
    for (const Payload& payload : batch.payloads) {
      const std::string& kind = series_->at(payload.key.series).kind;
      no_file_ += kind != kind::kStack && !is_drawn(payload);
    }
    for (const auto& [window, taken] : ended) finish(window, taken);
  }

  void flush() override {}

  // What is held belongs to a step that did not end.
  void close() override {
    const std::lock_guard lock(mutex_);
    for (const auto& [window, rows] : windows_) unfinished_ += std::ssize(rows);
    for (const auto& [window, drawn] : drawn_) unfinished_ += std::ssize(drawn);
    windows_.clear();
    drawn_.clear();
  }

  std::map<std::string, std::int64_t> rows_left_out() const override {
    std::map<std::string, std::int64_t> rows;
    if (!options_.files) return rows;
    if (skipped_ > 0) rows["attempt_not_taken"] = skipped_;
    if (unfinished_ > 0) rows["step_not_ended"] = unfinished_;
    if (no_file_ > 0) rows["no_file_for_kind"] = no_file_;
    if (not_ready_ > 0) rows["not_ready"] = not_ready_;
    return rows;
  }

  void set_ops(std::vector<Stat> ops, std::int64_t from_window) override {
    const std::lock_guard lock(mutex_);
    ops_[from_window] = std::move(ops);
  }

  std::vector<MsprobeTensor> tensors(std::string_view kind) const override {
    const std::lock_guard lock(mutex_);
    std::vector<MsprobeTensor> found;
    if (series_ == nullptr) return found;
    for (auto window = windows_.rbegin(); window != windows_.rend() && found.empty(); ++window) {
      collect(window->second, kind, found);
    }
    if (found.empty()) collect(last_, kind, found);
    return found;
  }

 private:
  static bool leaves_a_forward(const Outcome& outcome) {
    return outcome.optimizer == 0 && outcome.fate != Fate::taken && outcome.backwards >= 0;
  }

  // A row at its window, which is the next one for what came after the last backward of a window
  // that was given up.
  void hold(Row row) {
    const auto moved = moved_.find(row.key.window);
    if (moved != moved_.end() && row.key.accum >= moved->second) {
      row.key.accum -= moved->second;
      ++row.key.window;
    }
    windows_[row.key.window].push_back(row);
  }

  bool is_drawn(const Payload& payload) const {
    return options_.files && options_.events && payload.type == PayloadType::histogram;
  }

  void hold(const Payload& payload) {
    if (!is_drawn(payload)) return;
    if (std::optional<Histogram> histogram = read_histogram(payload.bytes)) {
      drawn_[payload.key.window].emplace_back(payload.key.series, std::move(*histogram));
    }
  }

  void move_forward(const Outcome& outcome) {
    moved_[outcome.window] = outcome.backwards;
    if (moved_.size() > kMostMoved) moved_.erase(moved_.begin());
    const auto found = windows_.find(outcome.window);
    if (found == windows_.end()) return;
    const Rows rows = std::exchange(found->second, {});
    for (const Row& row : rows) hold(row);
  }

  const std::vector<Stat>& ops_at(std::int64_t window) const {
    return std::prev(ops_.upper_bound(window))->second;
  }

  // Rows without an outcome once a batch is taken in; those it brings the end of do not count. So
  // a step too large loses some of its rows, and the next one none.
  std::size_t waiting_after(const RecordBatch& batch) const {
    std::set<std::int64_t> ending;
    for (const Outcome& outcome : batch.outcomes) {
      if (outcome.optimizer == 0) ending.insert(outcome.window);
    }
    std::size_t waiting = 0;
    for (const auto& [window, rows] : windows_) {
      if (!ending.contains(window)) waiting += rows.size();
    }
    for (const auto& [window, drawn] : drawn_) {
      if (!ending.contains(window)) waiting += drawn.size();
    }
    for (const Row& row : batch.rows) waiting += ending.contains(row.key.window) ? 0 : 1;
    return waiting;
  }

  void finish(std::int64_t window, bool taken) {
    if (const auto drawn = drawn_.find(window); drawn != drawn_.end()) {
      if (!taken) skipped_ += std::ssize(drawn->second);
      drawn_.erase(drawn);
    }
    const auto found = windows_.find(window);
    if (found == windows_.end()) return;
    if (taken) {
      last_ = std::move(found->second);
    } else {
      skipped_ += std::ssize(found->second);
    }
    windows_.erase(found);
    while (ops_.size() > 1 && std::next(ops_.begin())->first <= window + 1) {
      ops_.erase(ops_.begin());
    }
  }

  std::vector<Placed> placed_rows(std::span<const Row> rows, std::string_view prefix) const {
    return place(rows, prefix, *series_, options_);
  }

  // One row per module, once and for all.
  void write_stacks(const RecordBatch& batch) {
    std::string text;
    for (const Payload& payload : batch.payloads) {
      const Series& series = series_->at(payload.key.series);
      if (series.kind != kind::kStack || payload.type != PayloadType::text) continue;
      const auto* bytes = reinterpret_cast<const char*>(payload.bytes.data());
      append_stack(text, series, {bytes, payload.bytes.size()});
    }
    if (text.empty()) return;
    files_.append_to(run_.directory / "stack_info.csv", "module_name,stack_info\n", text);
  }

  // --- from rows to events -----------------------------------------------------------------------

  void add_events(const Outcome& outcome, std::int64_t time_ns) {
    events_.begin(time_ns, outcome.step);
    if (const auto rows = windows_.find(outcome.window); rows != windows_.end()) {
      const std::vector<Stat>& ops = ops_at(outcome.window);
      for (const std::string_view prefix : prefixes()) {
        add_events(placed_rows(rows->second, prefix), ops);
      }
    }
    if (const auto drawn = drawn_.find(outcome.window); drawn != drawn_.end()) {
      for (const auto& [id, histogram] : drawn->second) events_.add(series_->at(id), histogram);
    }
    events_.end();
  }

  void add_events(const std::vector<Placed>& placed, const std::vector<Stat>& ops) {
    for (const Placed& p : placed) {
      if (p.series->kind == kind::kCc) continue;
      if (!p.is_known()) {
        ++unknown_;
      } else if (const FileKind& file = *file_kind(p.series->kind, options_);
                 file.columns == Columns::feature) {
        events_.add_feature(p, file.column);
      } else {
        events_.add(p, ops);
      }
    }
    for (const auto& [place, state] : merged_collectives(placed)) {
      events_.add_collective(place.first, place.second, state, ops);
    }
  }

  // --- from rows to files ------------------------------------------------------------------------

  void write_step(const Rows& rows, std::int64_t step) {
    if (!options_.files || rows.empty()) return;
    const std::vector<StepFile> files =
        options_.monitors.empty()
            ? v1_files(rows, step, *series_, options_, ops_at(rows.front().key.window))
            : v2_files(rows, step, *series_, options_, run_.rank);
    for (const StepFile& file : files) files_.append(file, step);
  }

  void collect(const Rows& rows, std::string_view kind, std::vector<MsprobeTensor>& found) const {
    const FileKind* file = file_kind(kind, options_);
    if (file == nullptr) return;
    for (const Placed& p : placed_rows(rows, file->prefix)) {
      if (p.series->kind != kind) continue;
      const Shape* shape = series_->shape_of(*p.row);
      found.push_back({tag_of(p, run_.rank, options_.micro_gradients), p.row->state,
                       shape == nullptr ? Shape() : *shape, p.series->dtype});
    }
  }

  MsprobeOptions options_;
  RunInfo run_;
  const SeriesTable* series_ = nullptr;
  mutable std::mutex mutex_;
  std::map<std::int64_t, Rows> windows_;  // without an outcome
  std::map<std::int64_t, Drawn> drawn_;   // the same, histograms
  StepEvents events_;
  std::int64_t unknown_ = 0;                       // rows without a value in the events under way
  std::map<std::int64_t, std::int32_t> moved_;     // backwards of windows given up lately
  Rows last_;                                      // of the last step that was taken
  std::map<std::int64_t, std::vector<Stat>> ops_;  // by the window from which on they hold
  StepFiles files_;
  std::atomic<std::int64_t> skipped_{0};
  std::atomic<std::int64_t> unfinished_{0};
  std::atomic<std::int64_t> no_file_{0};
  std::atomic<std::int64_t> not_ready_{0};
};

}  // namespace

std::unique_ptr<MsprobeSink> make_msprobe_sink(const MsprobeOptions& options) {
  return std::make_unique<MsprobeFiles>(options);
}

}  // namespace trainmon
