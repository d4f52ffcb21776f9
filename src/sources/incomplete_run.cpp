#include "sources/incomplete_run.h"

#include <iterator>
#include <optional>
#include <utility>

#include "base/text.h"
#include "read/completeness.h"

namespace trainmon {

std::vector<std::string> incomplete_run(const std::vector<RankDirectory>& places,
                                        const std::function<bool(int)>& takes_rank,
                                        std::string_view sink, const std::vector<ReadGap>& gaps) {
  std::vector<std::string> sentences;
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (!takes_rank(places[i].rank)) continue;
    std::vector<Damage> said_elsewhere;
    const RunFacts facts = read_run_json(places[i], said_elsewhere);
    const std::optional<StoredHealth> stored = read_health_json(places[i], said_elsewhere);
    Completeness state =
        completeness_of(places[i], facts, stored, nullptr, is_newest(places, i), sink);
    std::move(state.incomplete.begin(), state.incomplete.end(), std::back_inserter(sentences));
  }
  if (!places.empty()) return sentences;
  for (const ReadGap& one : gaps) {
    sentences.push_back("rank " + std::to_string(one.rank) + ": " + grouped(one.gap.rows) +
                        " rows were dropped (" + one.gap.reason + ")");
  }
  return sentences;
}

}  // namespace trainmon
