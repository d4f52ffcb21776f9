// Every rank says how many there were and which of them record, so any one that is left will do.
#include "read/missing_ranks.h"

#include <algorithm>

namespace trainmon {

void ExpectedRanks::add(const RunFacts& facts) {
  world_size_ = std::max(world_size_, facts.world_size);
  if (facts.ranks.empty()) all_below_ = std::max(all_below_, facts.world_size);
  for (const int rank : facts.ranks) {
    if (rank < facts.world_size) named_.insert(rank);
  }
}

MissingRanks ExpectedRanks::missing(const std::vector<RankDirectory>& directories) const {
  std::set<int> left = named_;
  for (int rank = 0; rank < all_below_; ++rank) left.insert(rank);
  for (const RankDirectory& directory : directories) left.erase(directory.rank);
  return {{left.begin(), left.end()}, world_size_};
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (!text.empty()) text += ' ';
    text += std::to_string(ranks[i]);
    if (last > i) text += "-" + std::to_string(ranks[last]);
    i = last + 1;
  }
  return text;
}

std::string missing_text(const MissingRanks& missing) {
  if (missing.ranks.empty()) return "";
  const bool is_one = missing.ranks.size() == 1;
  return (is_one ? "rank " : "ranks ") + ranks_text(missing.ranks) + " of " +
         std::to_string(missing.world_size) + (is_one ? " is missing" : " are missing");
}

}  // namespace trainmon
