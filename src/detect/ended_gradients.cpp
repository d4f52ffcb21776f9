// A row that is late is told from one that does not come any more by how long others were away.
#include "detect/ended_gradients.h"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>

namespace trainmon::detect {
namespace {

constexpr std::int64_t kRows = 10;  // so many tell how long one is away
constexpr std::uint64_t kLongest = 3;

}  // namespace

void EndedGradients::check(const Window& window) {
  if (restart_ != window.now.restart) begin_start(window);
  std::map<std::int32_t, Times> measured;  // by rank
  for (const Observation& one : window.now.all()) {
    if (one.quantity != Quantity::grad_reduced) continue;
    std::uint64_t& time = measured[one.rank][window.tensors[one.tensor].optimizer];
    time = std::max(time, one.seq);
    Rank& rank = ranks_[one.rank];
    rank.lines.resize(window.tensors.size());
    Line& line = rank.lines[one.tensor];
    rank.goes_on |= line.is_of_before;
    if (line.last && one.seq > *line.last) {
      line.longest = std::max(line.longest, one.seq - *line.last);
    }
    ++line.rows;
    line.step = window.now.step;
    line.last = std::max(line.last.value_or(0), one.seq);
    line.since = std::nullopt;
    line.is_away = line.is_announced = false;
  }
  for (const auto& [rank, times] : measured) {
    ranks_[rank].is_lossy = window.lossy.contains(rank);
    check_rank(window, rank, times);
  }
}

// A start has other rows, with times of its own. Ranks that are others hold other tensors, too.
void EndedGradients::begin_start(const Window& window) {
  if (numbers_ != window.ranks) ranks_.clear();
  numbers_ = window.ranks;
  restart_ = window.now.restart;
  for (auto& [number, rank] : ranks_) {
    rank.goes_on = false;
    for (Line& line : rank.lines) {
      line.last = std::nullopt;
      line.step = -1;
      if (!line.is_away) line.since = std::nullopt;
      line.is_of_before = line.rows > 0;
    }
  }
}

void EndedGradients::check_rank(const Window& window, std::int32_t number, const Times& times) {
  Rank& rank = ranks_[number];
  const auto edits = window.edits.find(number);
  const auto is_announced = [&](std::uint64_t from, std::uint64_t to) {
    if (edits == window.edits.end()) return false;
    const auto next = edits->second.upper_bound(from);
    return next != edits->second.end() && *next <= to;
  };
  // The step of this number may lie elsewhere for each optimizer.
  const auto time_of = [&](std::uint32_t tensor) {
    const auto own = times.find(window.tensors[tensor].optimizer);
    const auto earliest = std::ranges::min_element(times, {}, &Times::value_type::second);
    return own != times.end() ? own->second : earliest->second;
  };
  for (std::uint32_t tensor = 0; tensor < rank.lines.size(); ++tensor) {
    Line& line = rank.lines[tensor];
    if (line.rows < kRows || line.longest == 0 || line.is_away) continue;
    if (line.step == window.now.step) continue;
    const std::uint64_t now = time_of(tensor);
    if (!line.since && now >= line.last.value_or(0)) {
      line.since = {window.now.restart, window.now.step};
      line.is_announced = is_announced(line.last.value_or(0), now);
      if (!line.last) line.last = now;
    }
    line.is_away = line.since && now > *line.last + kLongest * line.longest && rank.goes_on;
  }
}

// An optimizer that took more steps than others may have ended before them, though no step lacks
// its tensors. What another rank or another optimizer has goes on.
void EndedGradients::end(const std::vector<Tensor>& tensors, Findings& found) const {
  using Name = std::pair<std::string, std::int32_t>;
  const auto name_of = [&](std::size_t tensor) {
    return Name(tensors[tensor].name, tensors[tensor].chunk);
  };
  std::set<Name> going_on;
  std::map<std::pair<Place, std::int32_t>, std::vector<std::uint32_t>> ended;  // by step, rank
  for (const auto& [number, rank] : ranks_) {
    std::uint64_t now = 0;
    for (const Line& line : rank.lines) now = std::max(now, line.last.value_or(0));
    for (std::size_t tensor = 0; tensor < rank.lines.size(); ++tensor) {
      const Line& line = rank.lines[tensor];
      const bool ends_earlier = line.last && !line.since && line.rows >= kRows &&
                                line.longest > 0 && now > *line.last + kLongest * line.longest;
      if (!line.is_away && !ends_earlier) {
        if (line.rows > 0) going_on.insert(name_of(tensor));
      } else if (!rank.is_lossy && !line.is_announced) {
        const Place since = line.since.value_or(Place(restart_.value_or(0), line.step + 1));
        ended[{since, number}].push_back(static_cast<std::uint32_t>(tensor));
      }
    }
  }
  for (auto& [place, all] : ended) {
    std::erase_if(all, [&](std::uint32_t tensor) { return going_on.contains(name_of(tensor)); });
    if (all.empty()) continue;
    Finding one;
    std::tie(one.restart, one.step) = place.first;
    one.check = Check::present;
    one.stage = Stage::grad_reduced;
    one.ranks = {place.second};
    one.tensors = std::move(all);
    one.certain = false;
    one.text =
        "the gradient ends, and gradients of other tensors go on: these were frozen, or nothing "
        "leads from them to the loss";
    found.add(std::move(one));
  }
}

}  // namespace trainmon::detect
