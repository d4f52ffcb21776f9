// Which ranks and restarts are followed, and from where.
#include "answers/tail.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "read/earlier_findings.h"
#include "read/expired_steps.h"

namespace trainmon {

RunTail::RunTail(std::filesystem::path run, const ReadOptions& options, bool wants_rows,
                 std::size_t newest)
    : run_(std::move(run)),
      options_(options),
      tells_(wants_rows ? TailOf::rows : TailOf::steps),
      newest_(newest) {
  rank_directories(run_);  // throws where there is no run
}

RunTail::~RunTail() = default;

std::size_t RunTail::ranks() const {
  std::set<int> ranks;
  for (const auto& [key, place] : places_) ranks.insert(key.first);
  return ranks.size();
}

TailNews RunTail::look() {
  TailNews news;
  find_places(news);
  if (!is_first_) {
    for (auto& [key, place] : places_) place->look(news);
  }
  is_first_ = false;
  return news;
}

// At first each rank is read from so far back that there is enough; later restarts from their
// beginning.
void RunTail::find_places(TailNews& news) {
  std::vector<RankDirectory> there = rank_directories(run_);
  const RowFilter filter(options_);
  if (is_first_) {
    news.incomplete = incompleteness(there, filter);
    news.earlier = earlier_findings(there, filter);
    news.expired = expired_sentences(there, [&](int rank) { return filter.takes_rank(rank); });
  }
  std::vector<std::string> present;
  std::reverse(there.begin(), there.end());  // newest restart of each rank first
  std::set<int> found_some;
  for (const RankDirectory& directory : there) {
    if (!filter.takes_rank(directory.rank)) continue;
    if (directory.error) {
      if (is_first_) news.damage.push_back({directory.path, 0, directory.error.message()});
      continue;
    }
    const PlaceKey key(directory.rank, directory.restart);
    if (places_.contains(key) || (is_first_ && found_some.contains(directory.rank))) continue;
    if (!is_first_) {
      const auto newer = places_.upper_bound(key);
      if (newer != places_.end() && newer->first.first == directory.rank) continue;  // an old one
      places_[key] = std::make_unique<RankTail>(directory, filter, tells_,
                                                std::numeric_limits<std::size_t>::max());
      continue;
    }
    for (std::size_t segments = 1;; segments *= 4) {
      auto place = std::make_unique<RankTail>(directory, filter, tells_, segments);
      TailNews here;
      place->look(here);
      const std::size_t count = here.steps.size() + here.rows.size();
      // The first step of a later segment may have begun in the one before.
      if (count <= newest_ && !place->is_whole()) continue;
      for (std::string& kind : place->kinds()) present.push_back(std::move(kind));
      if (count > 0) found_some.insert(directory.rank);
      const auto last = [&](auto& list) {
        if (list.size() > newest_)
          list.erase(list.begin(), list.end() - static_cast<std::ptrdiff_t>(newest_));
      };
      last(here.steps);
      last(here.rows);
      std::move(here.steps.begin(), here.steps.end(), std::back_inserter(news.steps));
      std::move(here.rows.begin(), here.rows.end(), std::back_inserter(news.rows));
      std::move(here.damage.begin(), here.damage.end(), std::back_inserter(news.damage));
      place->check(news.damage);
      places_[key] = std::move(place);
      break;
    }
  }
  if (is_first_) filter.check_kinds(present);
}

TailNews RunTail::unfinished() {
  TailNews news;
  for (auto& [key, place] : places_) place->unfinished(news);
  return news;
}

}  // namespace trainmon
