// What health.json claims, what gap records in the log say, and whether the process lives.
#include "read/completeness.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "base/process.h"
#include "base/text.h"
#include "model/timeline.h"
#include "read/account.h"
#include "read/log.h"

namespace trainmon {
namespace {

constexpr auto kSilence = std::chrono::minutes(15);  // of a machine that cannot be asked

// By reason: as health.json counts, or, where that is older than the log, as gaps say.
std::map<std::string, std::int64_t> drops_of(const std::optional<StoredHealth>& stored,
                                             const LogContents* log, std::string_view name) {
  std::map<std::string, std::int64_t> drops, gaps;
  for (const SinkHealth& sink : stored ? stored->health.sinks : std::vector<SinkHealth>()) {
    if (sink.name == name) drops = sink.rows_dropped;
  }
  if (log != nullptr) {
    for (const RecordBatch& batch : log->batches) {
      for (const Gap& gap : batch.gaps) gaps[gap.reason] += gap.rows;
    }
  }
  for (const auto& [reason, rows] : gaps) drops[reason] = std::max(drops[reason], rows);
  std::erase_if(drops, [](const auto& one) { return one.second <= 0; });
  return drops;
}

WriterState writer_of(const RunFacts& facts, const std::optional<StoredHealth>& stored) {
  if (stored && stored->closed) return WriterState::closed;
  switch (is_alive(facts.process)) {
    case Alive::yes:
      return WriterState::running;
    case Alive::no:
      return WriterState::gone;
    case Alive::unknown:
      break;
  }
  return WriterState::unknown;
}

void find_last(Completeness& found, const RunFacts& facts, const LogContents& log) {
  Timeline timeline = log.outcomes;
  timeline.set_start_steps(facts.start_steps);
  const std::int64_t last =
      std::max(timeline.newest_window(facts.clock).value_or(-1), log.windows.last(facts.clock));
  found.last_time_ns = log.last_time_ns;
  if (last >= 0) found.last_step = timeline.at(facts.clock, last).step;
  found.skips = timeline.skips_at_end();
}

std::string last_text(const Completeness& found) {
  if (found.last_time_ns == 0) return "";
  std::string text = "; its last record is of ";
  if (found.last_step) text += "step " + std::to_string(*found.last_step) + ", ";
  return text + utc_text(found.last_time_ns);
}

bool is_silent(std::int64_t time_ns) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return time_ns > 0 && now - std::chrono::nanoseconds(time_ns) > kSilence;
}

// Frames without rows, which hold scalars, outcomes and alerts, show nowhere else.
void check_end(Completeness& found, const RankDirectory& place, const StoredHealth& stored,
               const LogContents& log) {
  for (const SinkHealth& sink : stored.health.sinks) {  // fewer rows are said elsewhere
    if (sink.name == "log" && log.rows + rows_deleted(log) < sink.rows_written) return;
  }
  if (log.torn_tails > 0) {
    found.damage.push_back({place.path, 0,
                            "the run was stopped in order, but the end of its log is cut: " +
                                std::to_string(log.torn_tails) + " unfinished frame"});
    return;
  }
  for (const SinkHealth& sink : stored.health.sinks) {
    const std::int64_t gone = std::max<std::int64_t>(0, log.expired.batches);
    if (sink.name != "log" || log.batch_count + gone >= sink.batches_written ||
        rows_deleted(log) > std::max<std::int64_t>(0, log.expired.rows) || log.expired.rows < 0) {
      continue;
    }
    found.damage.push_back({place.path, 0,
                            "health.json says " + grouped(sink.batches_written) +
                                " batches were written, the log holds " +
                                grouped(log.batch_count)});
  }
}

// A step that a loss scaler skips leaves no grad_reduced; this many in a row are no adjustment of
// the scale.
constexpr std::int64_t kManySkipped = 20;

bool has_kind(const LogContents& log, std::string_view kind) {
  return std::any_of(log.series.begin(), log.series.end(),
                     [&](const auto& one) { return one.second.kind == kind; });
}

}  // namespace

std::vector<std::string> FollowedKills::sentences() const {
  std::vector<std::string> sentences;
  for (const auto& [restart, ranks] : ranks_) {
    sentences.push_back("restart " + std::to_string(restart) + " was killed (" +
                        (ranks.size() == 1 ? "rank " : "ranks ") + ranks_text(ranks) +
                        "), and a newer one followed");
  }
  return sentences;
}

Completeness completeness_of(const RankDirectory& place, const RunFacts& facts,
                             const std::optional<StoredHealth>& stored, const LogContents* log,
                             bool is_newest, std::string_view sink) {
  Completeness found;
  found.writer = writer_of(facts, stored);
  if (log != nullptr) find_last(found, facts, *log);
  std::string who = "rank " + std::to_string(place.rank);
  if (place.restart > 0 || !is_newest) who += ", restart " + std::to_string(place.restart);
  const auto add = [&](const std::string& what) { found.incomplete.push_back(who + ": " + what); };
  if (!is_newest) found.skips.clear();
  if (!found.skips.empty()) found.skips.insert(0, "rank " + std::to_string(place.rank) + ": ");
  const std::map<std::string, std::int64_t> drops = drops_of(stored, log, sink);
  const auto add_dropped = [&](const std::map<std::string, std::int64_t>& all, const char* what) {
    std::string reasons;
    std::int64_t dropped = 0;
    for (const auto& [reason, count] : all) {
      reasons += (reasons.empty() ? "" : ", ") + reason + " " + grouped(count);
      dropped += count;
    }
    if (dropped > 0) add(grouped(dropped) + " " + what + " were dropped (" + reasons + ")");
  };
  add_dropped(drops, "rows");
  if (stored) {
    std::map<std::string, std::int64_t> scalars = stored->health.scalars_dropped;
    scalars.erase("max_scalars");  // a limit that was chosen
    scalars.erase("no_number");    // nothing that could have been recorded
    add_dropped(scalars, "logged values");
  }
  const bool records = facts.ranks.empty() || std::find(facts.ranks.begin(), facts.ranks.end(),
                                                        place.rank) != facts.ranks.end();
  const bool is_empty = log != nullptr && log->rows == 0 && log->damage.empty() &&
                        (!stored || stored->health.rows_produced == 0);
  if (log != nullptr && has_kind(*log, kind::kGradReduced) &&
      !has_kind(*log, kind::kGradUnreduced)) {
    const std::int64_t skipped = log->outcomes.most_skipped_in_a_row();
    if (skipped >= kManySkipped) {
      add("the loss scaler skipped " + grouped(skipped) +
          " steps in a row, which left no gradients: kinds=[\"grad_unreduced\"] records them");
    }
  }
  const bool is_running = found.writer == WriterState::running;
  if (is_empty && is_newest && records && facts.process.pid > 0) {
    add(is_running ? "nothing has been recorded yet" : "nothing was recorded");
  }
  if (is_newest && found.writer == WriterState::gone) {
    add(drops.contains("stop_timeout")
            ? "its stop ran out of time"
            : "its process is gone and did not stop in order (killed, or it could not write at "
              "the end): what came last may be missing" +
                  last_text(found));
  }
  if (is_newest && found.writer == WriterState::unknown && is_silent(found.last_time_ns)) {
    add("it did not stop in order and has been silent since (killed, or it stands still)" +
        last_text(found));
  }
  if (log != nullptr && stored && stored->closed) check_end(found, place, *stored, *log);
  return found;
}

std::optional<WriterState> ended(const std::filesystem::path& run, const ReadOptions& options) {
  const std::vector<RankDirectory> there = rank_directories(run);
  const RowFilter filter(options);
  std::optional<WriterState> end;
  for (std::size_t i = 0; i < there.size(); ++i) {
    if (there[i].error || !filter.takes_rank(there[i].rank) || !is_last(there, i)) continue;
    std::vector<Damage> said_elsewhere;
    const RunFacts facts = read_run_json(there[i], said_elsewhere);
    const auto stored = read_health_json(there[i], said_elsewhere);
    const WriterState state = completeness_of(there[i], facts, stored, nullptr, true).writer;
    if (state == WriterState::running || state == WriterState::unknown) return std::nullopt;
    if (!end || state == WriterState::gone) end = state;
  }
  return end;
}

}  // namespace trainmon
