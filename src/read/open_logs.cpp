#include "read/open_logs.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>

#include "base/parallel.h"
#include "read/completeness.h"
#include "read/row_filter.h"

namespace trainmon {
namespace {

// The bytes of a log's largest segment; 0 where there is none.
std::uintmax_t largest_segment(const RankDirectory& place) {
  std::uintmax_t largest = 0;
  std::error_code unknown;
  const std::filesystem::directory_iterator end;
  for (std::filesystem::directory_iterator file(place.path, unknown); !unknown && file != end;
       file.increment(unknown)) {
    std::error_code gone;
    if (file->path().extension() != ".tmlog") continue;
    const std::uintmax_t bytes = file->file_size(gone);
    if (!gone) largest = std::max(largest, bytes);
  }
  return largest;
}

// What is read in a few milliseconds anyway has no file.
LogIndex::Kept kept_of(const RankDirectory& place, const std::optional<StoredHealth>& health,
                       Indexes indexes) {
  constexpr std::int64_t kWorthAFile = std::int64_t{1} << 20;
  if (largest_segment(place) < kWorthAFile) return {};
  if (indexes == Indexes::only_used) return {std::numeric_limits<std::int64_t>::max(), false};
  std::vector<Damage> said_later;
  const RunFacts facts = read_run_json(place, said_later);
  const WriterState writer = completeness_of(place, facts, health, nullptr, true).writer;
  return {kWorthAFile, writer == WriterState::closed || writer == WriterState::gone};
}

std::vector<OpenedLog> open_each(const std::vector<RankDirectory>& places, Allowance& allowance,
                                 unsigned threads, Indexes indexes) {
  std::vector<OpenedLog> opened(places.size());
  SharedSeries shared;
  const std::size_t of_each = threads / std::max<std::size_t>(1, places.size());
  for_each_parallel(places.size(), threads, [&](std::size_t i) {
    opened[i] =
        open_log(places[i], allowance, static_cast<unsigned>(std::max<std::size_t>(1, of_each)),
                 indexes, &shared);
  });
  return opened;
}

}  // namespace

unsigned threads_within_memory(const std::vector<RankDirectory>& places, unsigned threads) {
  constexpr std::uintmax_t kBytes = std::uintmax_t{128} << 20;
  std::uintmax_t largest = 1;
  for (const RankDirectory& place : places) largest = std::max(largest, largest_segment(place));
  return static_cast<unsigned>(std::clamp<std::uintmax_t>(kBytes / largest, 1, threads));
}

OpenedLog open_log(const RankDirectory& place, Allowance& allowance, unsigned threads,
                   Indexes indexes, SharedSeries* shared) {
  OpenedLog opened;
  opened.place = place;
  if (place.error) return opened;
  // Before the log: a run that ends between the two reads must not look as if it had lost rows.
  opened.health = read_health_json(place, opened.damage);
  const auto log = std::make_shared<LogIndex>(place.path, place.rank, place.restart, allowance,
                                              threads, kept_of(place, opened.health, indexes));
  if (shared != nullptr) log->share_series(*shared);
  opened.log = log;
  // After it: the step a living run began at is there before its first rows.
  opened.facts = read_run_json(place, opened.damage);
  opened.timeline = opened.log->contents().outcomes;
  opened.timeline.set_start_steps(opened.facts.start_steps);
  return opened;
}

std::vector<OpenedLog> open_logs(const std::vector<RankDirectory>& places, Allowance& allowance,
                                 unsigned threads, Indexes indexes) {
  std::vector<OpenedLog> opened =
      open_each(places, allowance, threads_within_memory(places, threads), indexes);
  if (!allowance.is_exhausted()) return opened;
  allowance.renew();  // by whose frames, the threads decided
  return open_each(places, allowance, 1, indexes);
}

OpenedRun::OpenedRun(const std::filesystem::path& run, const ReadOptions& options, Indexes asked)
    : path(run),
      indexes(asked),
      directories(rank_directories(run)),
      allowance(std::make_shared<Allowance>()) {
  const RowFilter filter(options);
  std::vector<RankDirectory> asked_for;
  for (const RankDirectory& place : directories) {
    if (filter.takes_rank(place.rank)) asked_for.push_back(place);
  }
  logs = open_logs(asked_for, *allowance, useful_threads(options.threads), indexes);
}

OpenedRun OpenedRun::of_restart(int restart) const {
  const auto is_other = [&](const RankDirectory& place) {
    return !place.error && place.restart != restart;
  };
  OpenedRun one = *this;
  std::erase_if(one.directories, is_other);
  std::erase_if(one.logs, [&](const OpenedLog& log) { return is_other(log.place); });
  for (const OpenedLog& log : logs) {
    if (!is_other(log.place)) continue;
    for (const auto& [id, series] : log.log->contents().series) {
      if (std::ranges::find(one.other_kinds, series.kind) == one.other_kinds.end()) {
        one.other_kinds.push_back(series.kind);
      }
    }
  }
  return one;
}

}  // namespace trainmon
