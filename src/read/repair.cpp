// The log is read as every reader reads it, and what it gives is written anew. So the copy gives
// the same, and what readers complain of is what is lost.
#include "read/repair.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/file.h"
#include "base/json_text.h"
#include "base/process.h"
#include "base/text.h"
#include "read/completeness.h"
#include "read/joined_segment.h"
#include "read/log_index.h"
#include "read/log_segments.h"
#include "read/repaired.h"
#include "read/run_layout.h"
#include "sinks/compress.h"
#include "sinks/log_encode.h"
#include "sinks/log_retention.h"
#include "trainmon/version.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

void write_new(const fs::path& path, std::string_view content) {
  const File file = create_file(path);
  write_at(file, 0, content, path);
}

std::string text_of(const Json& value) {
  return value.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// Whose log it is, as any of its segments says.
SegmentInfo info_of(const RankDirectory& from, const RunFacts& facts) {
  std::vector<Damage> said_elsewhere;
  SegmentInfo info;
  info.run_id = facts.run_id;
  info.world_size = std::max(1, facts.world_size);
  for (const SegmentFile& file : segment_files(from.path, said_elsewhere)) {
    if (!file.is_file) continue;
    const std::optional<SegmentInfo> told = read_head(file.path).info;
    if (told && told->rank == from.rank && told->restart == from.restart) {
      info = *told;
      break;
    }
  }
  info.rank = from.rank;
  info.restart = from.restart;
  return info;
}

// The segments of a log, written anew one after the other.
class LogCopy {
 public:
  LogCopy(const LogContents& contents, SegmentInfo info, fs::path to, RepairedRank& rank)
      : contents_(contents), to_(std::move(to)), rank_(rank) {
    records_.info = std::move(info);
    // Files below the first one that is kept are none for readers.
    records_.info.start = {contents.expired.first_segment};
  }

  void add(RecordBatch&& batch) {
    log_format::for_each_series(
        batch, [&](SeriesId id) { records_.series.emplace(id, contents_.series.at(id)); });
    records_.rows += batch.rows.size();
    rank_.rows += batch.row_count();
    ++rank_.batches;
    records_.batches.push_back(std::move(batch));
  }

  // `bytes` is what its batches took before.
  void end_segment(std::int64_t bytes) {
    if (records_.batches.empty()) return;
    const std::string content = joined(records_, bytes);
    if (!same_records(records_, read_segment(content))) {
      throw std::logic_error("repairing would change records of " + to_.string());
    }
    log_format::SegmentStart& start = records_.info.start;
    write_new(to_ / log_format::segment_name(start.number), content);
    ++rank_.segments;
    start = {start.number + 1, start.number, bytes};
    records_.batches.clear();
    records_.series.clear();
    records_.rows = 0;
  }

 private:
  const LogContents& contents_;
  const fs::path to_;
  RepairedRank& rank_;
  SegmentRecords records_;
};

void copy_log(const LogIndex& index, const SegmentInfo& info, const fs::path& to,
              RepairedRank& rank, const std::function<void(std::int64_t)>& did) {
  LogCopy copy(index.contents(), info, to, rank);
  std::optional<std::size_t> segment;
  std::int64_t bytes = 0;
  for (const LogIndex::Piece& piece : index.pieces()) {
    if (segment && *segment != piece.segment) copy.end_segment(std::exchange(bytes, 0));
    segment = piece.segment;
    index.read(
        piece, [](SeriesId) { return true; },
        [](const LogIndex::BatchFacts&) { return Columns::all(); },
        [&](RecordBatch&& batch, const LogIndex::BatchFacts&) { copy.add(RecordBatch(batch)); },
        rank.damage);
    bytes += piece.bytes;
    did(piece.bytes);
  }
  copy.end_segment(bytes);
}

// Without the entries that readers do not understand, of which they take the defaults.
void copy_run_json(const RankDirectory& from, const RankDirectory& to) {
  const fs::path path = to.path / "run.json";
  const auto complaints = [&](const Json& run) {
    write_atomically(path, text_of(run));
    std::vector<Damage> damage;
    read_run_json(to, damage);
    return damage.size();
  };
  Json run = {{"rank", from.rank}, {"restart", from.restart}};
  try {
    run = Json::parse(read_json_text(from.path / "run.json"));
    if (!run.is_object()) run = Json::object();
  } catch (const std::exception&) {  // it is told as damage
  }
  std::size_t left = complaints(run);
  const auto drop_odd = [&](Json& object) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : object.items()) keys.push_back(key);
    for (const std::string& key : keys) {
      if (left == 0) return;
      const Json kept = object[key];
      object.erase(key);
      const std::size_t without = complaints(run);
      if (without < left) {
        left = without;
      } else {
        object[key] = kept;
      }
    }
  };
  if (left > 0 && run.contains("config") && run["config"].is_object()) drop_odd(run["config"]);
  if (left > 0) drop_odd(run);
  complaints(run);
}

// The books of the copy: its log has all rows that were written.
Json health_of(const StoredHealth& stored, const LogContents& log, const RepairedRank& rank) {
  const Health& health = stored.health;
  SinkHealth of_log;
  for (const SinkHealth& sink : health.sinks) {
    if (sink.name == "log") of_log = sink;
  }
  of_log.rows_written = rank.rows + rows_deleted(log);
  of_log.batches_written = rank.batches + std::max<std::int64_t>(0, log.expired.batches);
  const Json sink = {{"name", "log"},
                     {"rows_written", of_log.rows_written},
                     {"batches_written", of_log.batches_written},
                     {"rows_dropped", of_log.rows_dropped},
                     {"degraded", of_log.degraded}};
  return {{"rows_produced", of_log.rows_written + rows_dropped(of_log)},
          {"rows_pending", 0},
          {"sinks", Json::array({sink})},
          {"refused", health.refused},
          {"scalars_dropped", health.scalars_dropped},
          {"parts_off", health.parts_off},
          {"errors", health.errors},
          {"alerts", health.alerts},
          {"queue_bytes", 0},
          {"queue_bytes_peak", health.queue_bytes_peak},
          {"queue_seconds", 0.0},
          {"closed", true},
          {"updated", utc_now()}};
}

// The books of a start that did not end in order are older than its last rows.
std::optional<std::int64_t> rows_lost(const std::optional<StoredHealth>& stored,
                                      const LogContents& log, const RepairedRank& rank) {
  if (!stored || log.expired.rows < 0) return std::nullopt;
  if (rank.was != WriterState::closed && !rank.damage.empty()) return std::nullopt;
  for (const SinkHealth& sink : stored->health.sinks) {
    if (sink.name != "log") continue;
    return std::max<std::int64_t>(0, sink.rows_written - rank.rows - rows_deleted(log));
  }
  return std::nullopt;
}

const char* state_name(WriterState state) {
  return state == WriterState::closed ? "closed" : state == WriterState::gone ? "killed" : "open";
}

void write_account(const RepairedRank& rank, const fs::path& to) {
  constexpr std::size_t kMostTold = 1000;
  Json damage = Json::array();
  for (std::size_t i = 0; i < std::min(kMostTold, rank.damage.size()); ++i) {
    const Damage& one = rank.damage[i];
    damage.push_back({{"file", printable(one.file.filename().native())},
                      {"offset", one.offset},
                      {"what", printable(one.what)}});
  }
  write_new(to / kRepairFile,
            text_of({{"trainmon", kVersion},
                     {"repaired", utc_now()},
                     {"state", state_name(rank.was)},
                     {"rows_lost", rank.rows_lost ? Json(*rank.rows_lost) : Json()},
                     {"unfinished_writes", rank.torn_tails},
                     {"damaged_places", rank.damage.size()},
                     {"damage", std::move(damage)}}));
}

bool is_of_log(const fs::path& file) {
  const std::string name = file.filename().string();
  return log_format::segment_number(name) || file.extension() == log_format::kIndexExtension ||
         name == "run.json" || name == "health.json" || name == "retention.json" ||
         file.extension() == ".tmp";
}

// Flight recorders have checksums of their own for each event, and a reader that goes by them.
void copy_rest(const RankDirectory& from, const fs::path& to, RepairedRank& rank) {
  std::error_code error;
  for (fs::directory_iterator entry(from.path, error), end; !error && entry != end;
       entry.increment(error)) {
    const fs::path& path = entry->path();
    std::error_code unknown;
    const bool is_file = entry->is_regular_file(unknown) && !entry->is_symlink(unknown);
    if (is_file && path.extension() == ".ring") {
      fs::copy_file(path, to / path.filename(), unknown);
      if (unknown) throw file_error(unknown.value(), "cannot copy", path);
    } else if (!is_of_log(path)) {
      rank.left.push_back(path);
    }
  }
  std::ranges::sort(rank.left);
}

RepairedRank repair_rank(const RankDirectory& from, const fs::path& to, bool is_newest,
                         const std::function<void(std::int64_t)>& did) {
  RepairedRank rank;
  rank.rank = from.rank;
  rank.restart = from.restart;
  make_directories(to);
  copy_rest(from, to, rank);
  std::error_code unknown;
  if (fs::is_empty(from.path, unknown)) return rank;  // it died before it wrote anything
  const RunFacts facts = read_run_json(from, rank.damage);
  const std::optional<StoredHealth> stored = read_health_json(from, rank.damage);
  Allowance allowance;
  const LogIndex index(from.path, from.rank, from.restart, allowance);
  const LogContents& log = index.contents();
  rank.damage.insert(rank.damage.end(), log.damage.begin(), log.damage.end());
  rank.torn_tails = log.torn_tails;
  const Completeness state = completeness_of(from, facts, stored, &log, is_newest);
  rank.was = state.writer;
  rank.damage.insert(rank.damage.end(), state.damage.begin(), state.damage.end());
  copy_log(index, info_of(from, facts), to, rank, did);
  copy_run_json(from, {from.rank, from.restart, to, {}});
  std::vector<Damage> of_retention;
  if (expired_in(from.path, of_retention).first_segment > 0) {
    write_new(to / kRetentionFile, read_json_text(from.path / kRetentionFile));
  }
  write_new(to / "health.json", text_of(health_of(stored.value_or(StoredHealth{}), log, rank)));
  rank.rows_lost = rows_lost(stored, log, rank);
  if (rank.is_changed()) write_account(rank, to);
  return rank;
}

void refuse_living(const std::vector<RankDirectory>& directories) {
  for (const RankDirectory& place : directories) {
    if (place.error) continue;
    std::vector<Damage> said_elsewhere;
    const RunFacts facts = read_run_json(place, said_elsewhere);
    const auto stored = read_health_json(place, said_elsewhere);
    if (completeness_of(place, facts, stored, nullptr, true).writer != WriterState::running) {
      continue;
    }
    throw std::runtime_error("process " + std::to_string(facts.process.pid) + " still writes " +
                             place.path.string() + ": a run is repaired when it has ended");
  }
}

}  // namespace

Repair repair(const fs::path& run, const fs::path& to,
              const std::function<bool(std::int64_t, std::int64_t)>& progress) {
  if (!has_zstd()) throw std::runtime_error("this build has no zstd: a repaired log needs it");
  const std::vector<RankDirectory> directories = rank_directories(run);
  refuse_living(directories);
  std::int64_t total = 0, done = 0;
  for (const RankDirectory& place : directories) total += place.error ? 0 : log_bytes(place.path);
  make_directories(to);
  Repair result;
  for (std::size_t i = 0; i < directories.size(); ++i) {
    const RankDirectory& place = directories[i];
    if (place.error) {
      result.unreadable.push_back({place.path, 0, place.error.message()});
      continue;
    }
    const fs::path folder = to / place.path.parent_path().filename() / place.path.filename();
    result.ranks.push_back(
        repair_rank(place, folder, is_newest(directories, i), [&](std::int64_t bytes) {
          done += bytes;
          if (!progress(done, total)) throw std::runtime_error("interrupted: nothing was written");
        }));
  }
  std::error_code unknown;
  if (fs::is_regular_file(run / "control.json", unknown)) {
    fs::copy_file(run / "control.json", to / "control.json", unknown);
  }
  return result;
}

}  // namespace trainmon
