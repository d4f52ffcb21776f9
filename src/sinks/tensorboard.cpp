// The sink `tensorboard`. Rows are merged per series and window as they come, so that a curve has
// one point per step, and written when the step is over or a flush interval has passed.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "base/timeline.h"
#include "sinks/curves.h"
#include "sinks/event_file.h"
#include "sinks/sinks.h"

namespace trainmon {
namespace {

constexpr int kNameAttempts = 1000;
constexpr std::size_t kKnownOutcomes = 64;
constexpr std::int64_t kWindowsKept = 3;  // for values of devices that come late
constexpr std::int64_t kMostUnsure = 8;   // that wait to learn their step
constexpr std::string_view kMergedTag = "trainmon/series_merged";

// RUN/tensorboard/rank_3 for RUN/rank_00003/restart_0001; a directory that somebody gave is used
// as it is.
std::filesystem::path directory_of(const RunInfo& run) {
  const std::filesystem::path rank = run.directory.parent_path();
  const bool is_ours = rank.filename().string().starts_with("rank_") &&
                       run.directory.filename().string().starts_with("restart_");
  if (!is_ours) return run.directory;
  return rank.parent_path() / "tensorboard" / ("rank_" + std::to_string(run.rank));
}

// Not before the newest file that is there, whatever the clock says.
std::int64_t file_time(const std::filesystem::path& directory, std::int64_t now) {
  constexpr std::string_view kStart = "events.out.tfevents.";
  std::error_code unknown;
  for (const auto& entry : std::filesystem::directory_iterator(directory, unknown)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kStart)) {
      now = std::max<std::int64_t>(now, std::atoll(name.c_str() + kStart.size()));
    }
  }
  return now;
}

double seconds(std::int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

bool add(Histogram& into, const Histogram& from) {
  if (into.bins.size() != from.bins.size() || into.low != from.low || into.high != from.high) {
    return false;
  }
  for (std::size_t i = 0; i < into.bins.size(); ++i) into.bins[i] += from.bins[i];
  return true;
}

// What one source has of one window.
struct Slot {
  RowState state;
  Histogram histogram;
  std::int64_t rows = 0;       // merged in it
  std::int64_t unwritten = 0;  // of these, since it was last written
  std::uint64_t last_seq = 0;
};

struct Window {
  std::vector<Slot> slots;  // by source
  std::vector<std::pair<SourceId, std::string>> texts;
  std::vector<std::pair<std::string, double>> scalars;
  std::optional<std::int64_t> step;  // once it has ended
  bool is_dirty = false;
  std::int64_t time_ns = 0;
};
using Place = std::pair<std::int32_t, std::int64_t>;  // optimizer, window

class TensorboardSink : public Sink {
 public:
  explicit TensorboardSink(std::size_t tags) : tags_(tags), curves_(tags) {
    curves_.has_tag(std::string(kMergedTag));  // there must be room for it
  }

  std::string_view name() const override { return "tensorboard"; }

  void open(const RunInfo& run, const SeriesTable& series) override {
    run_ = run;
    series_ = &series;
    directory_ = directory_of(run);
    make_directories(directory_);
    open_file();
  }

  // Into memory; but first what is held of windows before goes to the file. So a disk that fails
  // refuses this batch, and what was taken waits.
  void write(const RecordBatch& batch) override {
    timeline_.add(batch);
    timeline_.keep_last(kKnownOutcomes);
    if (has_failed_ || begins_a_window(batch)) write_windows(false);
    hold(batch);
    for (const Outcome& outcome : batch.outcomes) {
      const auto ended = windows_.find({outcome.optimizer, outcome.window});
      if (ended != windows_.end()) ended->second.step = outcome.step;
    }
  }

  void flush() override { write_windows(false); }

  void close() override {
    try {
      write_windows(true);
    } catch (...) {
      for (const auto& [place, window] : windows_) {
        for (const Slot& slot : window.slots) unwritten_ += slot.unwritten;
        unwritten_ += std::ssize(window.texts);
      }
      windows_.clear();
      file_.close();
      throw;
    }
    file_.close();
  }

  std::map<std::string, std::int64_t> rows_left_out() const override {
    std::map<std::string, std::int64_t> rows;
    const auto add = [&rows](const char* reason, std::int64_t count) {
      if (count > 0) rows[reason] = count;
    };
    add("deleted", deleted_);
    add("no_place", no_place_);
    add("not_ready", not_ready_);
    add("tag_budget", no_tag_);
    add("not_written_at_close", unwritten_);
    return rows;
  }

 private:
  // --- from batches to windows -------------------------------------------------------------------

  Place place_of(const RowKey& key) const {
    return {series_->at(key.series).optimizer, key.window};
  }

  bool is_new(const Place& place) const {
    const auto after = windows_.lower_bound({place.first + 1, kFirstWindow});
    if (after == windows_.begin()) return false;
    const Place& newest = std::prev(after)->first;
    return newest.first == place.first && newest.second < place.second;
  }

  bool begins_a_window(const RecordBatch& batch) const {
    Place looked_at{-1, -1};
    for (const Row& row : batch.rows) {
      const Place place = place_of(row.key);
      if (place == looked_at) continue;
      if (is_new(place)) return true;
      looked_at = place;
    }
    return std::any_of(batch.scalars.begin(), batch.scalars.end(), [this](const Scalar& scalar) {
      return is_new({run_.clock, scalar.window});
    });
  }

  // All that allocates comes first: a batch is taken whole or not at all.
  void hold(const RecordBatch& batch) {
    struct Target {
      Window* window;
      SourceId source;
    };
    std::vector<Target> targets;
    targets.reserve(batch.rows.size() + batch.payloads.size());
    Place last{-1, -1};
    Window* window = nullptr;
    const auto window_at = [&](const Place& place) {
      if (window == nullptr || place != last) {
        last = place;
        window = &windows_[place];
      }
      return window;
    };
    for (const Row& row : batch.rows) {
      targets.push_back({window_at(place_of(row.key)), source_of_rows(row.key.series)});
    }
    std::vector<std::optional<Histogram>> histograms(batch.payloads.size());
    for (std::size_t i = 0; i < batch.payloads.size(); ++i) {
      const Payload& payload = batch.payloads[i];
      const bool is_text = payload.type == PayloadType::text;
      if (payload.type == PayloadType::histogram) histograms[i] = read_histogram(payload.bytes);
      if (!is_text && !histograms[i]) {
        targets.push_back({nullptr, 0});
        continue;
      }
      const Form form = is_text ? Form::text : Form::histogram;
      targets.push_back({window_at(place_of(payload.key)),
                         curves_.source_of(series_->at(payload.key.series), form)});
      if (is_text) {
        window->texts.reserve(window->texts.size() + batch.payloads.size());
      }
    }
    for (const Target& target : targets) {
      if (target.window == nullptr) continue;
      if (target.window->slots.size() <= target.source) {
        target.window->slots.resize(curves_.source_count());
      }
    }
    for (const Scalar& scalar : batch.scalars) {
      Window& of_clock = *window_at({run_.clock, scalar.window});
      of_clock.scalars.emplace_back(scalar.name, scalar.value);
      touch(of_clock, batch.time_ns);
    }
    for (std::size_t i = 0; i < targets.size(); ++i) {
      const auto [target, source] = targets[i];
      if (target == nullptr) {
        ++no_place_;
      } else if (i < batch.rows.size()) {
        take_row(*target, target->slots[source], batch.rows[i], batch.time_ns);
      } else {
        const std::size_t number = i - batch.rows.size();
        take_payload(*target, source, batch.payloads[number], histograms[number]);
        touch(*target, batch.time_ns);
      }
    }
  }

  SourceId source_of_rows(SeriesId id) {
    if (id >= row_sources_.size()) row_sources_.resize(id + std::size_t{1}, kUnknownSource);
    if (row_sources_[id] == kUnknownSource) {
      const Series& series = series_->at(id);
      row_sources_[id] = curves_.source_of(series, form_of_rows(series.kind));
    }
    return row_sources_[id];
  }

  static void touch(Window& window, std::int64_t time_ns) {
    window.is_dirty = true;
    window.time_ns = time_ns;
  }

  // Gradients before reduction add up over the backwards of a window: the last row holds them all.
  void take_row(Window& window, Slot& slot, const Row& row, std::int64_t time_ns) {
    if ((row.key.flags & flag::kNotReady) != 0) {
      ++not_ready_;
      return;
    }
    const bool adds_up = series_->at(row.key.series).kind == kind::kGradUnreduced;
    if (slot.rows == 0 || (adds_up && row.key.seq >= slot.last_seq)) {
      slot.state = row.state;
    } else if (!adds_up) {
      merge(slot.state, row.state);
    }
    slot.last_seq = std::max(slot.last_seq, row.key.seq);
    ++slot.rows;
    ++slot.unwritten;
    touch(window, time_ns);
  }

  static void take_payload(Window& window, SourceId source, const Payload& payload,
                           std::optional<Histogram>& histogram) {
    if (!histogram) {
      const auto* text = reinterpret_cast<const char*>(payload.bytes.data());
      window.texts.emplace_back(source, std::string(text, payload.bytes.size()));
      return;
    }
    Slot& slot = window.slots[source];
    if (slot.rows == 0 || !add(slot.histogram, *histogram)) slot.histogram = std::move(*histogram);
    ++slot.rows;
    ++slot.unwritten;
  }

  // --- from windows to events --------------------------------------------------------------------

  // The step of a window is known for certain once the one before has ended; the first one's only
  // at its own end, for a checkpoint may be loaded until then. Windows end in their order.
  bool knows_step(const Place& place) const {
    const auto known = timeline_.outcomes().find(place.first);
    return known != timeline_.outcomes().end() && !known->second.empty() &&
           known->second.rbegin()->first >= place.second - 1;
  }

  bool has_waited(const Place& place) const {
    const auto after = windows_.upper_bound({place.first, place.second + kMostUnsure});
    return after != windows_.begin() && std::prev(after)->first.first == place.first &&
           std::prev(after)->first.second - place.second >= kMostUnsure - 1;
  }

  void write_windows(bool all) {
    if (run_.start_steps) timeline_.set_start_steps(run_.start_steps());
    std::vector<std::pair<std::int64_t, Window*>> chosen;
    for (auto& [place, window] : windows_) {
      if (!window.is_dirty || !(all || knows_step(place) || has_waited(place))) continue;
      const std::int64_t step =
          window.step ? *window.step : timeline_.at(place.first, place.second).step;
      chosen.emplace_back(step, &window);
    }
    if (chosen.empty()) return;
    has_failed_ = true;
    curves_.place_new_sources();
    look_at_file();
    records_.clear();
    if (needs_start_) {
      const auto first = std::min_element(chosen.begin(), chosen.end());
      records_.session_start(seconds(chosen.front().second->time_ns), first->first);
    }
    tell_overflow();
    for (const auto& [step, window] : chosen) append_event(step, *window);
    file_.append(records_.bytes());
    has_failed_ = false;
    needs_start_ = false;
    for (const auto& [step, window] : chosen) settle(*window);
    forget_old_windows();
  }

  void append_event(std::int64_t step, const Window& window) {
    records_.begin(seconds(window.time_ns), step);
    for (const auto& [name, value] : window.scalars) {
      if (curves_.has_tag(name)) {
        records_.scalar(name, value);
      } else {
        log_line_limited("tensorboard.scalars", "sink tensorboard: no tag is left of " +
                                                    grouped(std::int64_t(tags_)) +
                                                    " for the scalar " + name);
      }
    }
    if (told_merged_ > 0) records_.scalar(kMergedTag, static_cast<double>(told_merged_));
    for (const auto& [source, text] : window.texts) {
      const CurveId curve = curves_.curve_of(source);
      if (curve != kNoCurve) records_.text(curves_.at(curve).tags.front(), text);
    }
    for (CurveId id = 0; id < curves_.size(); ++id) append_curve(curves_.at(id), window);
    records_.end();
  }

  void append_curve(const Curve& curve, const Window& window) {
    if (curve.form == Form::text) return;
    const Slot* first = nullptr;
    bool is_dirty = false;
    std::optional<Slot> merged;
    for (const SourceId source : curve.members) {
      if (source >= window.slots.size() || window.slots[source].rows == 0) continue;
      const Slot& slot = window.slots[source];
      is_dirty |= slot.unwritten > 0;
      if (first == nullptr) {
        first = &slot;
      } else {
        if (!merged) merged = *first;
        merge(merged->state, slot.state);
        add(merged->histogram, slot.histogram);
      }
    }
    if (!is_dirty) return;
    const Slot& whole = merged ? *merged : *first;
    if (curve.form == Form::histogram) {
      records_.histogram(curve.tags.front(), whole.histogram);
      return;
    }
    const std::span<const Stat> stats = stats_of(curve.form);
    for (std::size_t i = 0; i < stats.size(); ++i) {
      records_.scalar(curve.tags[i], derive(stats[i], whole.state));
    }
  }

  // The window is in the file.
  void settle(Window& window) {
    const auto count = [this](SourceId source, std::int64_t rows) {
      if (curves_.curve_of(source) == kNoCurve) {
        no_tag_ += rows;
      } else {
        rows_in_file_ += rows;
      }
    };
    for (SourceId source = 0; source < window.slots.size(); ++source) {
      const std::int64_t rows = std::exchange(window.slots[source].unwritten, 0);
      if (rows > 0) count(source, rows);
    }
    for (const auto& [source, text] : window.texts) count(source, 1);
    window.texts.clear();
    window.scalars.clear();
    window.is_dirty = false;
  }

  void forget_old_windows() {
    for (auto at = windows_.begin(); at != windows_.end();) {
      const auto [optimizer, window] = at->first;
      const auto after = windows_.lower_bound({optimizer + 1, kFirstWindow});
      const bool is_old = std::prev(after)->first.second - window >= kWindowsKept;
      at = is_old && !at->second.is_dirty ? windows_.erase(at) : std::next(at);
    }
  }

  void tell_overflow() {
    const std::size_t merged = curves_.merged() + curves_.missing();
    if (merged == 0) return;
    if (told_merged_ == 0) {
      const auto number = [](std::size_t n) { return grouped(static_cast<std::int64_t>(n)); };
      log_line("rank " + std::to_string(run_.rank) + ": sink tensorboard: " +
               number(curves_.own()) + " series have curves of their own, " +
               number(curves_.merged()) + " share one per layer, " + number(curves_.missing()) +
               " have none: tensorboard_tags is " + number(tags_));
    }
    told_merged_ = merged;
  }

  // --- the file ----------------------------------------------------------------------------------

  void look_at_file() {
    if (file_.is_open() && file_.is_deleted()) {
      deleted_ += rows_in_file_;
      rows_in_file_ = 0;
      needs_start_ = true;
      log_line_limited("tensorboard.deleted",
                       file_.path().string() + " was deleted; a new file follows");
      file_.close();
    }
    if (!file_.is_open()) open_file();
  }

  void open_file() {
    const std::int64_t now = now_ns();
    const std::int64_t time = file_time(directory_, now / 1'000'000'000);
    for (int attempt = 0; attempt < kNameAttempts; ++attempt) {
      try {
        file_.create(directory_ / event_file_name(time, run_.restart, next_number_), seconds(now));
        ++next_number_;
        rows_in_file_ = 0;
        return;
      } catch (const SinkError& error) {
        if (error.reason() == "deleted" && attempt == 0) {
          make_directories(directory_);
        } else if (error.reason() == "exists") {
          ++next_number_;  // somebody else's file: never touched
        } else {
          throw;
        }
      }
    }
    throw SinkError("exists", "no free name for an event file in " + directory_.string());
  }

  static constexpr std::int64_t kFirstWindow = std::numeric_limits<std::int64_t>::min();
  static constexpr SourceId kUnknownSource = 0xFFFFFFFF;

  const std::size_t tags_;
  RunInfo run_;
  const SeriesTable* series_ = nullptr;
  std::filesystem::path directory_;
  Timeline timeline_;
  Curves curves_;
  std::vector<SourceId> row_sources_;  // by series
  std::map<Place, Window> windows_;
  EventRecords records_;  // of the write under way
  EventFile file_;
  int next_number_ = 0;
  bool needs_start_ = true;
  bool has_failed_ = false;      // what is held could not be written
  std::size_t told_merged_ = 0;  // series without a curve of their own
  std::int64_t rows_in_file_ = 0;

  std::atomic<std::int64_t> deleted_{0};
  std::atomic<std::int64_t> no_place_{0};
  std::atomic<std::int64_t> not_ready_{0};
  std::atomic<std::int64_t> no_tag_{0};
  std::atomic<std::int64_t> unwritten_{0};
};

}  // namespace

std::unique_ptr<Sink> make_tensorboard_sink(std::size_t tags) {
  return std::make_unique<TensorboardSink>(tags);
}

}  // namespace trainmon
