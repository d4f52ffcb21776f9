// Order is everything: what segments alone declare is written anew, retention.json tells that they
// are gone, and then they go. A segment that a kill left below the first one that is kept is none.
#include "sinks/log_retention.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <system_error>
#include <utility>

#include "base/failpoint.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/restart_folder.h"
#include "sinks/log_format.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFirst = "{\"first_segment\": ";

// As the file of an earlier deletion says; 0 without one.
int told_first(const fs::path& directory) {
  try {
    const std::string text = read_beginning(directory / kRetentionFile, 64);
    if (text.starts_with(kFirst)) return std::atoi(text.c_str() + kFirst.size());
  } catch (const SinkError&) {
  }
  return 0;
}

struct Found {
  int number = 0;
  fs::path path;
  std::int64_t bytes = 0;
  std::chrono::seconds written{0};  // since 1970
};

std::vector<Found> segments_in(const fs::path& directory) {
  std::vector<Found> found;
  for (fs::path& entry : entries_of(directory)) {
    const std::optional<int> number = log_format::segment_number(entry.filename().native());
    struct stat status {};
    if (!number || ::lstat(entry.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    found.push_back(
        {*number, std::move(entry), status.st_size, std::chrono::seconds(status.st_mtim.tv_sec)});
  }
  std::ranges::sort(found, {}, &Found::number);
  return found;
}

// Of the rank, oldest first, `own` the last of them.
std::vector<fs::path> starts_until(const fs::path& own) {
  std::vector<std::pair<int, fs::path>> starts;
  const std::optional<int> number = restart_number(own);
  if (number) {
    for (fs::path& entry : entries_of(own.parent_path())) {
      struct stat status {};
      if (::lstat(entry.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) continue;
      const std::optional<int> other = restart_number(entry);
      if (other && *other < *number) starts.emplace_back(*other, std::move(entry));
    }
  }
  std::ranges::sort(starts);
  std::vector<fs::path> paths;
  for (auto& start : starts) paths.push_back(std::move(start.second));
  paths.push_back(own);
  return paths;
}

}  // namespace

void LogRetention::closed(int number, std::int64_t rows, std::int64_t batches) {
  if (keep_.is_set()) closed_[number] = {rows, batches};
}

void LogRetention::wrote(const RecordBatch& batch, int segment) {
  if (!keep_.is_set()) return;
  for (const Declared& declared : batch.declared) {
    for (const DeclaredValue& value : declared.values) {
      Held& held = held_[{declared.optimizer, declared.group, value.name}];
      held.declared = declared;
      held.declared.values = {value};
      held.segment = segment;
    }
  }
}

bool LogRetention::choose(const fs::path& directory, int open, std::int64_t room) {
  chosen_.clear();
  own_ = directory;
  if (!keep_.is_set()) return false;
  std::vector<std::pair<fs::path, std::vector<Found>>> all;
  std::int64_t bytes = room;
  for (fs::path& start : starts_until(directory)) {
    if (start != directory && keep_.lives && keep_.lives(start)) continue;
    std::vector<Found> found = segments_in(start);
    if (start == directory) std::erase_if(found, [&](const Found& f) { return f.number >= open; });
    for (const Found& one : found) bytes += one.bytes;
    all.emplace_back(std::move(start), std::move(found));
  }
  const auto now = std::chrono::duration_cast<std::chrono::seconds>(
      std::chrono::system_clock::now().time_since_epoch());
  for (auto& [start, found] : all) {
    Chosen chosen{start, {}};
    bool stays = false;
    for (Found& one : found) {
      const bool is_too_much = keep_.bytes > 0 && bytes > keep_.bytes;
      const bool is_too_old = keep_.age.count() > 0 && now - one.written > keep_.age;
      stays = !is_too_much && !is_too_old;
      if (stays) break;
      bytes -= one.bytes;
      chosen.segments.emplace_back(one.number, std::move(one.path));
    }
    if (!chosen.segments.empty()) chosen_.push_back(std::move(chosen));
    if (stays) break;
  }
  return !chosen_.empty();
}

std::vector<Declared> LogRetention::declared() const {
  std::vector<Declared> values;
  if (chosen_.empty() || chosen_.back().directory != own_) return values;
  const int last = chosen_.back().segments.back().first;
  for (const auto& [name, held] : held_) {
    if (held.segment <= last) values.push_back(held.declared);
  }
  return values;
}

void LogRetention::remove() {
  std::optional<SinkError> failed;
  for (const Chosen& chosen : std::exchange(chosen_, {})) {
    try {
      tell(chosen);
    } catch (const SinkError& error) {
      failed = error;
      continue;
    }
    for (const auto& [number, path] : chosen.segments) {
      // One that stays is none for readers; the next choice has it again.
      if (failpoint("retention.unlink").error == 0) ::unlink(path.c_str());
      fs::path index = path;
      ::unlink(index.replace_extension(log_format::kIndexExtension).c_str());
    }
  }
  if (failed) throw SinkError(*failed);
}

// Of other starts nobody knows how many rows their segments held.
void LogRetention::tell(const Chosen& chosen) {
  const int first_kept = chosen.segments.back().first + 1;
  const bool is_own = chosen.directory == own_;
  if (!is_own && first_kept <= told_first(chosen.directory)) return;  // what a kill left
  Counts gone{rows_expired(), batches_};
  const auto last = closed_.lower_bound(first_kept);
  for (auto one = closed_.begin(); is_own && one != last; ++one) {
    gone.rows += one->second.rows;
    gone.batches += one->second.batches;
  }
  const auto count = [&](std::int64_t number) { return is_own ? std::to_string(number) : "null"; };
  const std::string text = std::string(kFirst) + std::to_string(first_kept) +
                           ", \"rows\": " + count(gone.rows) +
                           ", \"batches\": " + count(gone.batches) + "}\n";
  if (const Failure failure = failpoint("retention.write"); failure.error != 0) {
    throw file_error(failure.error, "cannot write", chosen.directory / kRetentionFile);
  }
  write_atomically(chosen.directory / kRetentionFile, text);
  if (!is_own) return;
  rows_.store(gone.rows, std::memory_order_relaxed);
  batches_ = gone.batches;
  closed_.erase(closed_.begin(), last);
}

}  // namespace trainmon
