// What the groups of an optimizer say is compared with what they said. A rate may fall at once (a
// schedule of steps) and return to what it was (a restart). It may rise from zero (thawing) and
// by as much as it rose before (a warm-up). Of each value the first change is said. And ranks
// that step the same weights declare the same values.
#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/text.h"
#include "detect/checks.h"

namespace trainmon::detect {
namespace {

// A rate may be so many times the largest before it without being a jump.
constexpr double kRise = 1.87;
// Values that no schedule changes in common use.
const std::set<std::string> kFixed = {
    "betas.0",   "betas.1",  "eps",      "alpha",    "amsgrad",      "centered",
    "dampening", "maximize", "momentum", "nesterov", "weight_decay", "decoupled_weight_decay"};

bool is_watched(const std::string& name) {
  return name == "lr" || kFixed.contains(name);
}

// What a rank declares of the group in which it steps a tensor.
struct DeclaredOn {
  std::int32_t rank;
  std::int32_t group;
  const DeclaredGroup* values;
};

// Of the ranks that take these steps of one tensor, where all hold it.
std::vector<DeclaredOn> declared_of(const Window& window,
                                    const std::vector<const Observation*>& steps) {
  std::vector<DeclaredOn> all;
  for (const Observation* step : steps) {
    const auto* weight = window.now.find(step->tensor, Quantity::weight_after, step->rank);
    const GroupValues* const groups = window.groups(*step);
    if (weight == nullptr || !weight->is_replicated || groups == nullptr) return {};
    const auto group = groups->find(step->group);
    if (group == groups->end()) return {};
    all.push_back({step->rank, step->group, &group->second});
  }
  return all;
}

// False where all of them declare the same. Else adds what they do to the text; the first value
// that differs says which ranks are named: those outside the largest group of equals.
bool name_odd_ones(const std::vector<DeclaredOn>& ranks, const std::string& name,
                   Finding& finding) {
  // Nearly always they do, of every tensor in every step.
  const auto declared = [&](const DeclaredOn& one) { return value_of(*one.values, name.c_str()); };
  const auto first = declared(ranks.front());
  if (std::ranges::all_of(ranks, [&](const auto& one) { return declared(one) == first; })) {
    return false;
  }
  std::map<double, std::vector<std::int32_t>> of_value;
  for (const DeclaredOn& one : ranks) {
    if (const auto value = declared(one)) of_value[*value].push_back(one.rank);
  }
  if (of_value.size() < 2) return false;
  const auto largest =
      std::ranges::max_element(of_value, {}, [](const auto& one) { return one.second.size(); });
  const bool is_first = finding.text.empty();
  if (is_first) {
    finding.is_one_of_ranks = 2 * largest->second.size() <= ranks.size();
    finding.ranks.clear();
  }
  finding.text += (is_first ? "" : "; ") + name + " of group " +
                  std::to_string(ranks.front().group) + " differs between ranks: ";
  const char* separator = "";
  for (const auto& [value, of] : of_value) {
    finding.text += separator + number_text(value) + " on rank " + std::to_string(of.front());
    if (of.size() > 1) finding.text += " and " + std::to_string(of.size() - 1) + " more";
    separator = ", ";
    if (is_first && (finding.is_one_of_ranks || of != largest->second)) {
      finding.ranks.insert(finding.ranks.end(), of.begin(), of.end());
    }
  }
  std::ranges::sort(finding.ranks);
  return true;
}

bool are_weights_equal(const Window& window, std::uint32_t tensor) {
  const auto weights = window.now.of(tensor, Quantity::weight_after);
  return std::ranges::all_of(
      weights, [&](const Observation* one) { return are_equal(*one, *weights.front()); });
}

}  // namespace

void DeclaredJumps::check(const Window& window, Findings& found) {
  check_ranks(window, found);
  const bool begins = std::exchange(restart_, window.now.restart) != window.now.restart;
  for (const auto& [rank, optimizers] : window.declared) {
    for (const auto& [optimizer, groups] : optimizers) {
      for (const auto& [group, values] : groups) {
        for (const auto& [name, value] : values) {
          if (!is_watched(name) || !std::isfinite(value)) continue;
          found.checked(Check::config);
          const std::string key = std::to_string(rank) + ":" + std::to_string(optimizer) + ":" +
                                  std::to_string(group) + ":" + name;
          const bool is_rate = name == "lr";
          if (begins && is_rate) history_.erase(key);
          const double last = history_[key].last;
          if (!is_jump(history_[key], value, is_rate)) continue;
          Finding finding = window.finding(Check::config, Stage::update, rank);
          finding.value = value;
          finding.bound = last;
          finding.certain = false;  // a schedule may do so
          finding.text = name + " of group " + std::to_string(group) + " changed from " +
                         number_text(last) + " to " + number_text(value);
          found.add(std::move(finding));
        }
      }
    }
  }
}

// Certain where the weights differ after the step, as they must. Said once of each value.
void DeclaredJumps::check_ranks(const Window& window, Findings& found) {
  std::set<std::pair<std::int32_t, std::string>> differ;
  const std::vector<Observation>& all = window.now.all();
  for (std::size_t i = 0; i < all.size();) {
    const Observation& row = all[i];
    if (row.quantity != Quantity::update) {
      ++i;
      continue;
    }
    const std::vector<const Observation*> steps = window.now.of(row.tensor, row.quantity);
    i += steps.size();
    const std::vector<DeclaredOn> ranks = declared_of(window, steps);
    if (ranks.size() < 2) continue;
    Finding finding = window.finding(Check::config, Stage::update, row.rank, {row.tensor});
    for (const auto& [name, value] : *ranks.front().values) {
      const std::pair key(window.tensors[row.tensor].optimizer, name);
      if (!is_watched(name) || differ_.contains(key)) continue;
      found.checked(Check::config);
      if (!name_odd_ones(ranks, name, finding)) continue;
      differ.insert(key);
    }
    if (finding.text.empty()) continue;
    finding.certain = !are_weights_equal(window, row.tensor);
    found.add(std::move(finding));
  }
  differ_.merge(differ);
}

bool DeclaredJumps::is_jump(History& history, double value, bool is_rate) {
  const bool is_new = history.values++ == 0;
  const double rise = is_new ? 0.0 : value - history.last;
  const bool is_risen = std::abs(value) > kRise * history.largest && history.values > 3 &&
                        history.largest > 0.0 && rise > 2.0 * std::abs(history.rise);
  const bool changes = !is_new && rise != 0.0;
  // It follows a schedule from the start on, as the momentum of OneCycleLR does.
  const bool is_scheduled = changes && !is_rate && history.values == 2;
  const bool jumps = changes && !is_scheduled && !history.is_said && (!is_rate || is_risen);
  history.is_said = history.is_said || jumps || is_scheduled;
  history.rise = rise;
  history.last = value;
  history.largest = std::max(history.largest, std::abs(value));
  return jumps;
}

}  // namespace trainmon::detect
