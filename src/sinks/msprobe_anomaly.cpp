// Entries are kept as text in the order they were found; the file is rewritten from them.
#include "sinks/msprobe_anomaly.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <map>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"

namespace trainmon {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kOpenWindowsKept = 64;
constexpr std::size_t kCheapEntries = 1000;  // rewritten at every flush; more of them
constexpr int kTimesAsLong = 9;              // so rarely that it takes a tenth of the time

std::string_view task_of(std::string_view kind) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kTasks = {{
      {kind::kGradUnreduced, "acc_grad"},
      {kind::kGradMicro, "acc_grad"},
      {kind::kGradReduced, "post_grad"},
      {kind::kAttnEntropy, "qkt"},
      {kind::kAttnMax, "qkt"},
      {kind::kAttnMaxLogit, "qkt"},
      {kind::kStableRank, "sr"},
      {kind::kSpectralNorm, "sr"},
      {kind::kRouterSimilarity, "router_weight"},
      {kind::kRouterEntropy, "router_logit"},
  }};
  for (const auto& [name, task] : kTasks) {
    if (name == kind) return task;
  }
  return kind;
}

bool has_micro_steps(std::string_view kind, bool micro_gradients) {
  constexpr std::array kAlways = {kind::kActv,         kind::kActvGrad,    kind::kGradMicro,
                                  kind::kAttnMax,      kind::kAttnEntropy, kind::kAttnMaxLogit,
                                  kind::kRouterEntropy};
  return std::find(kAlways.begin(), kAlways.end(), kind) != kAlways.end() ||
         (micro_gradients && kind == kind::kGradUnreduced);
}

// A name for what an earlier start left: anomaly.20260131-235959.json, with -1, -2, ... if need be.
std::filesystem::path name_for_old(const std::filesystem::path& path, std::time_t time) {
  std::tm utc{};
  ::gmtime_r(&time, &utc);
  std::array<char, 32> stamp{};
  std::strftime(stamp.data(), stamp.size(), "%Y%m%d-%H%M%S", &utc);
  const std::filesystem::path stem = path.parent_path() / ("anomaly." + std::string(stamp.data()));
  std::filesystem::path name = stem.string() + ".json";
  std::error_code ignored;
  for (int n = 1; std::filesystem::symlink_status(name, ignored).type() !=
                  std::filesystem::file_type::not_found;
       ++n) {
    name = stem.string() + "-" + std::to_string(n) + ".json";
  }
  return name;
}

class MsprobeAnomalySink final : public Sink {
 public:
  explicit MsprobeAnomalySink(MsprobeAnomalyOptions options)
      : options_(std::move(options)),
        path_(options_.base / "anomaly_detected" / ("rank" + std::to_string(options_.rank)) /
              "anomaly.json") {}

  std::string_view name() const override { return "msprobe_anomaly"; }

  void open(const RunInfo&, const SeriesTable& series) override {
    series_ = &series;
    make_directories(path_.parent_path());
    put_old_aside();
    rewrite();
  }

  void write(const RecordBatch& batch) override {
    for (const Row& row : batch.rows) note(row.key);
    for (const Alert& alert : batch.alerts) {
      if (!alert.stat.empty()) take(alert);
    }
  }

  void flush() override {
    const bool is_cheap = entries_.size() <= kCheapEntries;
    if (is_dirty_ && (is_cheap || Clock::now() >= next_write_)) rewrite();
  }
  void close() override {
    if (is_dirty_) rewrite();
  }

 private:
  void put_old_aside() const {
    struct stat status {};
    if (::lstat(path_.c_str(), &status) != 0) return;
    if (S_ISREG(status.st_mode) && status.st_size <= 2) return;  // "{}": nothing was found
    const std::filesystem::path old = name_for_old(path_, status.st_mtime);
    if (::rename(path_.c_str(), old.c_str()) != 0 && errno != ENOENT) {
      throw file_error(errno, "cannot rename", path_);
    }
  }

  // Remembers where each of the last windows began.
  void note(const RowKey& key) {
    std::map<std::int64_t, std::uint64_t>& windows = first_seqs_[series_->at(key.series).optimizer];
    const auto [known, is_new] = windows.try_emplace(key.window, key.seq);
    known->second = std::min(known->second, key.seq);
    if (is_new && windows.size() > kOpenWindowsKept) windows.erase(windows.begin());
  }

  // The order of the row within its window on this rank, -1 when that was too long ago.
  std::int64_t call_id(const RowKey& key) const {
    const auto optimizer = first_seqs_.find(series_->at(key.series).optimizer);
    if (optimizer == first_seqs_.end()) return -1;
    const auto window = optimizer->second.find(key.window);
    if (window == optimizer->second.end() || key.seq < window->second) return -1;
    return static_cast<std::int64_t>(key.seq - window->second);
  }

  void take(const Alert& alert) {
    const std::string tag = msprobe_tag(series_->at(alert.key.series), alert.key, options_);
    const std::int64_t call = call_id(alert.key);
    const std::string key = tag + "_" + alert.stat + "_step_" + std::to_string(alert.step) +
                            "_call_" + std::to_string(call);
    const auto known = places_.find(key);
    if (known != places_.end()) {
      entries_[known->second] = entry(key, alert, tag, call, msprobe_alert_message(alert, tag));
    } else if (entries_.size() < options_.most_entries) {
      entries_.push_back(entry(key, alert, tag, call, msprobe_alert_message(alert, tag)));
      places_.emplace(key, entries_.size() - 1);
    } else {
      count_rest(alert, tag, call);
    }
    is_dirty_ = true;
  }

  void count_rest(const Alert& alert, const std::string& tag, std::int64_t call) {
    if (rest_ == 0) {
      rest_entry_ = {alert, tag, call};
      log_line(path_.string() + " is full with " +
               grouped(static_cast<std::int64_t>(entries_.size())) +
               " entries; what comes is counted in its last one");
    }
    rest_ += alert.count;
  }

  std::string entry(const std::string& key, const Alert& alert, const std::string& tag,
                    std::int64_t call, const std::string& message) const {
    const auto number = [](std::int64_t value) { return std::to_string(value); };
    std::string mates;
    for (const int mate : options_.group_mates) {
      mates += (mates.empty() ? "\n   " : ",\n   ") + number(mate);
    }
    return " " + json_string(key) + ": {\n  \"rank\": " + number(options_.rank) +
           ",\n  \"step\": " + number(alert.step) +
           ",\n  \"micro_step\": " + number(msprobe_micro_step(alert.key, options_)) +
           ",\n  \"pp_stage\": " + number(options_.pp_stage) +
           ",\n  \"vpp_stage\": " + number(series_->at(alert.key.series).chunk) +
           ",\n  \"call_id\": " + number(call) + ",\n  \"tag_name\": " + json_string(tag) +
           ",\n  \"message\": " + json_string(message) +
           ",\n  \"group_mates\": " + (mates.empty() ? "[]" : "[" + mates + "\n  ]") + "\n }";
  }

  void rewrite() {
    const Clock::time_point start = Clock::now();
    std::string text = "{";
    const auto put = [&text](const std::string& one) {
      text += (text == "{" ? "\n" : ",\n") + one;
    };
    for (const std::string& one : entries_) put(one);
    if (rest_ > 0) {
      const auto& [alert, tag, call] = rest_entry_;
      const std::string message = "This and " + grouped(rest_ - 1) +
                                  " later anomaly signals have no entry of their own. First: " +
                                  msprobe_alert_message(alert, tag);
      put(entry("more_from_step_" + std::to_string(alert.step), alert, tag, call, message));
    }
    text += text == "{" ? "}" : "\n}";
    in_directory(path_.parent_path(), [&] { write_atomically(path_, text); });
    is_dirty_ = false;
    const Clock::time_point end = Clock::now();
    next_write_ = end + kTimesAsLong * (end - start);
  }

  struct Rest {
    Alert alert;
    std::string tag;
    std::int64_t call = -1;
  };

  const MsprobeAnomalyOptions options_;
  const std::filesystem::path path_;
  const SeriesTable* series_ = nullptr;
  std::map<std::int32_t, std::map<std::int64_t, std::uint64_t>> first_seqs_;  // optimizer, window
  std::vector<std::string> entries_;
  std::unordered_map<std::string, std::size_t> places_;  // key -> in entries_
  std::int64_t rest_ = 0;
  Rest rest_entry_;
  bool is_dirty_ = false;
  Clock::time_point next_write_{};
};

}  // namespace

std::int64_t msprobe_micro_step(const RowKey& key, const MsprobeAnomalyOptions& options) {
  return options.micro_steps > 0 ? key.accum % options.micro_steps : key.accum;
}

std::string msprobe_tag(const Series& series, const RowKey& key,
                        const MsprobeAnomalyOptions& options) {
  std::string tag = std::to_string(series.chunk) + ":" + series.name;
  if (!series.element.empty()) tag += "." + series.element;
  if (has_micro_steps(series.kind, options.micro_gradients)) {
    tag += ":" + std::to_string(msprobe_micro_step(key, options));
  }
  return tag + "/rank" + std::to_string(options.rank) + "/" + std::string(task_of(series.kind));
}

std::string msprobe_alert_message(const Alert& alert, const std::string& tag) {
  if (alert.stat.empty()) {
    return "Rule " + alert.rule + " reports '" + tag + "' at step " + std::to_string(alert.step) +
           ": " + alert.message;
  }
  std::string text = "Rule " + alert.rule + " reports anomaly signal in ('" + tag + "', '" +
                     alert.stat + "') at step " + std::to_string(alert.step) + ", current value " +
                     number_text(alert.value) + ", history mean " + number_text(alert.expected) +
                     ".";
  if (alert.count > 1) text += " " + grouped(alert.count) + " signals are counted here.";
  return text;
}

std::unique_ptr<Sink> make_msprobe_anomaly_sink(MsprobeAnomalyOptions options) {
  return std::make_unique<MsprobeAnomalySink>(std::move(options));
}

}  // namespace trainmon
