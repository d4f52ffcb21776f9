#include "read/start_numbers.h"

#include <algorithm>
#include <functional>
#include <set>
#include <tuple>

namespace trainmon {
namespace {

constexpr double kApart = 60.0;  // seconds: processes that a script starts one after the other

// Seconds that both lived; of those that did not meet, less than 0: the time between them.
double together(const RankStart& one, const RankStart& other) {
  return std::min(one.end, other.end) - std::max(one.begin, other.begin);
}

using OfRank = std::vector<RankStart>;  // ascending

// The number of the one that lived beside it longest; its own where that one did, or none.
int number_of(const RankStart& start, const OfRank& numbered) {
  int number = start.restart;
  double longest = -kApart;
  for (const RankStart& one : numbered) {
    const double seconds = together(start, one);
    if (one.restart == start.restart && seconds >= 0.0) return start.restart;
    if (seconds < longest) continue;
    longest = seconds;
    number = one.restart;
  }
  return number;
}

}  // namespace

int start_number(const StartNumbers& numbers, int rank, int restart) {
  const auto known = numbers.find({rank, restart});
  return known == numbers.end() ? restart : known->second;
}

StartNumbers start_numbers(std::vector<RankStart> starts) {
  StartNumbers numbers;
  std::map<int, OfRank> by_rank;
  std::ranges::sort(starts, {},
                    [](const RankStart& one) { return std::tie(one.rank, one.restart); });
  for (const RankStart& one : starts) {
    if (one.begin <= 0.0) return numbers;
    by_rank[one.rank].push_back(one);
    by_rank[one.rank].back().end = std::max(one.begin, one.end);
  }
  const auto restarts_of = [](const OfRank& of_rank) {
    std::set<int> restarts;
    for (const RankStart& one : of_rank) restarts.insert(one.restart);
    return restarts;
  };
  const auto most =
      std::ranges::max_element(by_rank, {}, [](const auto& one) { return one.second.size(); });
  for (const auto& [rank, of_rank] : by_rank) {
    if (restarts_of(of_rank) == restarts_of(most->second)) continue;
    std::vector<int> found;
    for (const RankStart& one : of_rank) found.push_back(number_of(one, most->second));
    // Two restarts of a rank are two starts.
    if (std::ranges::adjacent_find(found, std::greater_equal<>()) != found.end()) continue;
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (found[i] != of_rank[i].restart) numbers[{rank, of_rank[i].restart}] = found[i];
    }
  }
  return numbers;
}

}  // namespace trainmon
