// The sink `tensorboard`. Rows are merged per series and window as they come, so that a curve has
// one point per step. They are written when the step is over or a flush interval has passed.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/folder.h"
#include "base/log.h"
#include "base/text.h"
#include "model/timeline.h"
#include "sinks/curves.h"
#include "sinks/event_file.h"
#include "sinks/merged_windows.h"
#include "sinks/sinks.h"

namespace trainmon {
namespace {

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
  for (const std::filesystem::path& entry : entries_of(directory)) {
    const std::string name = entry.filename().string();
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

class TensorboardSink : public Sink {
 public:
  explicit TensorboardSink(std::size_t tags) : tags_(tags), curves_(tags) {
    curves_.has_tag(std::string(kMergedTag));  // there must be room for it
  }

  std::string_view name() const override { return "tensorboard"; }

  void open(const RunInfo& run, const SeriesTable& series) override {
    run_ = run;
    windows_.open(series, run.clock);
    directory_ = directory_of(run);
    if (directory_ != run.directory) {
      for (const auto& folder : {directory_.parent_path(), directory_}) {
        if (const std::string link = link_text(folder); !link.empty()) log_warning(link);
      }
    }
    make_directories(directory_);
    open_file();
  }

  // Into memory; but first what is held of windows before goes to the file. So a disk that fails
  // refuses this batch, and what was taken waits.
  void write(const RecordBatch& batch) override {
    timeline_.add(batch);
    timeline_.keep_last(kKnownOutcomes);
    if (has_failed_ || windows_.are_followed_by(batch)) write_windows(false);
    windows_.hold(batch);
  }

  void flush() override { write_windows(false); }

  void close() override {
    try {
      write_windows(true);
    } catch (...) {
      for (const auto& [place, window] : windows_.by_place()) {
        for (const Slot& slot : window.slots) unwritten_ += slot.unwritten;
        unwritten_ += std::ssize(window.texts);
      }
      windows_.by_place().clear();
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
    add("no_place", windows_.no_place());
    add("not_ready", windows_.not_ready());
    add("tag_budget", no_tag_);
    add("not_written_at_close", unwritten_);
    return rows;
  }

 private:
  // The step of a window is known for certain once the one before has ended. The first one's is
  // known only at its own end, for a checkpoint may be loaded until then. Windows end in their
  // order.
  bool knows_step(const MergedWindows::Place& place) const {
    const std::optional<std::int64_t> newest = timeline_.newest_window(place.first);
    return newest && *newest >= place.second - 1;
  }

  void write_windows(bool all) {
    if (run_.start_steps) timeline_.set_start_steps(run_.start_steps());
    std::vector<std::pair<std::int64_t, MergedWindow*>> chosen;
    std::optional<std::int64_t> first;  // step that is known for certain
    for (auto& [place, window] : windows_.by_place()) {
      const bool is_known = knows_step(place);
      const bool is_due = all || is_known || windows_.are_newer(kMostUnsure, place);
      if (!window.is_dirty || !is_due) continue;
      const std::int64_t step =
          window.step ? *window.step : timeline_.at(place.first, place.second).step;
      chosen.emplace_back(step, &window);
      if (is_known) first = std::min(step, first.value_or(step));
    }
    if (chosen.empty()) return;
    has_failed_ = true;
    curves_.place_new_sources();
    look_at_file();
    records_.clear();
    // Never by a guess: it would hide what is there of an earlier restart.
    const bool starts = needs_start_ && first;
    if (starts) records_.session_start(seconds(chosen.front().second->time_ns), *first);
    tell_overflow();
    for (const auto& [step, window] : chosen) append_event(step, *window);
    file_.append(records_.bytes());
    has_failed_ = false;
    needs_start_ = needs_start_ && !starts;
    for (const auto& [step, window] : chosen) settle(*window);
    windows_.forget_all_but(kWindowsKept);
  }

  void append_event(std::int64_t step, const MergedWindow& window) {
    records_.begin(seconds(window.time_ns), step);
    const auto append = [this](bool has_tag, const std::string& name, double value) {
      if (has_tag) {
        records_.scalar(name, value);
      } else {
        log_line_limited("tensorboard.scalars", "sink tensorboard: no tag is left of " +
                                                    grouped(std::int64_t(tags_)) +
                                                    " for the scalar " + name);
      }
    };
    for (const auto& [name, value] : window.scalars) append(curves_.has_tag(name), name, value);
    for (const auto& [name, value] : window.declared) {
      append(curves_.has_declared_tag(name), name, value);
    }
    if (told_merged_ > 0) records_.scalar(kMergedTag, static_cast<double>(told_merged_));
    for (const auto& [source, text] : window.texts) {
      const CurveId curve = curves_.curve_of(source);
      if (curve != kNoCurve) records_.text(curves_.at(curve).tags.front(), text);
    }
    for (CurveId id = 0; id < curves_.size(); ++id) append_curve(curves_.at(id), window);
    records_.end();
  }

  void append_curve(const Curve& curve, const MergedWindow& window) {
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
      if (!is_told(stats[i], whole.state)) continue;
      records_.scalar(curve.tags[i], derive(stats[i], whole.state));
    }
  }

  // The window is in the file.
  void settle(MergedWindow& window) {
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
    window.declared.clear();
    window.is_dirty = false;
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
    if (file_.forget_lost()) {
      log_line_limited(
          "tensorboard.descriptor",
          "somebody closed the descriptor of " + file_.path().string() + "; a new file follows");
    }
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
    make_next_file(directory_, next_number_, [&](int number) {
      file_.create(directory_ / event_file_name(time, run_.restart, number), seconds(now));
      rows_in_file_ = 0;
    });
  }

  const std::size_t tags_;
  RunInfo run_;
  std::filesystem::path directory_;
  Timeline timeline_;
  Curves curves_;
  MergedWindows windows_{curves_};
  EventRecords records_;  // of the write under way
  EventFile file_;
  int next_number_ = 0;
  bool needs_start_ = true;
  bool has_failed_ = false;      // what is held could not be written
  std::size_t told_merged_ = 0;  // series without a curve of their own
  std::int64_t rows_in_file_ = 0;

  std::atomic<std::int64_t> deleted_{0};
  std::atomic<std::int64_t> no_tag_{0};
  std::atomic<std::int64_t> unwritten_{0};
};

}  // namespace

std::unique_ptr<Sink> make_tensorboard_sink(std::size_t tags) {
  return std::make_unique<TensorboardSink>(tags);
}

}  // namespace trainmon
