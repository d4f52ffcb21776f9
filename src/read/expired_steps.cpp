// The outcome of a step is written behind its rows: of the first one that is kept, rows may be
// gone.
#include "read/expired_steps.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "base/text.h"
#include "read/log_segments.h"
#include "read/log_tail.h"
#include "read/repaired.h"

namespace trainmon {
namespace {

// The first step of the clock whose end is in the log.
std::optional<std::int64_t> first_step_in(const RankDirectory& place) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 20;
  std::vector<Damage> said_elsewhere;
  const RunFacts facts = read_run_json(place, said_elsewhere);
  LogTail log(place.path, place.rank, place.restart, std::numeric_limits<std::size_t>::max());
  std::optional<std::int64_t> first;
  const auto take = [&](const RecordBatch& batch) {
    for (const Outcome& outcome : batch.outcomes) {
      if (outcome.optimizer == facts.clock && !first) first = outcome.step;
    }
  };
  while (!first && log.look(take, said_elsewhere, kPiece)) continue;
  return first;
}

struct OfRank {
  bool is_expired = false;
  std::optional<std::int64_t> first_step;
};

}  // namespace

std::vector<std::string> expired_sentences(const std::vector<RankDirectory>& directories,
                                           const std::function<bool(int)>& takes_rank) {
  std::map<int, OfRank> ranks;
  for (const RankDirectory& place : directories) {
    if (place.error || !takes_rank(place.rank)) continue;
    std::vector<Damage> said_elsewhere;
    OfRank& rank = ranks[place.rank];
    const bool is_part = expired_in(place.path, said_elsewhere).first_segment > 0;
    rank.is_expired |= is_part;
    if (!rank.is_expired || rank.first_step) continue;
    rank.first_step = first_step_in(place);
    if (rank.first_step && is_part) ++*rank.first_step;
  }
  std::vector<int> expired;
  std::optional<std::int64_t> first;
  for (const auto& [number, rank] : ranks) {
    if (!rank.is_expired) continue;
    expired.push_back(number);
    if (rank.first_step) first = std::max(first.value_or(*rank.first_step), *rank.first_step);
  }
  std::vector<std::string> sentences = repair_sentences(directories, takes_rank);
  if (expired.empty()) return sentences;
  sentences.push_back(
      (first ? "there are all rows from step " + grouped(*first) + " on: what is older"
             : std::string("what was recorded")) +
      " was deleted to keep to retention_mb or retention_days (" +
      (expired.size() == 1 ? "rank " : "ranks ") + ranks_text(expired) + ")");
  return sentences;
}

}  // namespace trainmon
