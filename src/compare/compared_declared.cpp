// A value holds from the step that says so until the next one that does.
#include "compare/compared_declared.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "base/text.h"

namespace trainmon {
namespace {

using Name = std::tuple<std::int32_t, std::int32_t, std::string>;  // optimizer, group, name
using History = std::map<std::int64_t, DeclaredValue>;             // by step
using Histories = std::map<int, std::map<Name, History>>;          // by rank

Histories histories_of(const ComparedRun& run) {
  Histories all;
  for (const ReadDeclared& one : run.declared) {
    all[one.rank][{one.optimizer, one.group, one.value.name}][one.step] = one.value;
  }
  return all;
}

std::string text_of(const DeclaredValue* value) {
  if (value == nullptr) return "";
  if (value->type == DeclaredValue::Type::unknown) return "?";
  return value->type == DeclaredValue::Type::text ? value->text : number_text(value->number);
}

const DeclaredValue* at(const History& history, std::int64_t step) {
  const auto after = history.upper_bound(step);
  return after == history.begin() ? nullptr : &std::prev(after)->second;
}

bool differ(const DeclaredValue* a, const DeclaredValue* b) {
  if (a == nullptr || b == nullptr) return a != b;
  using Type = DeclaredValue::Type;
  if (a->type == Type::unknown || b->type == Type::unknown) return false;
  if (a->type == Type::number && b->type == Type::number && std::isnan(a->number) &&
      std::isnan(b->number)) {
    return false;  // not every source keeps its bits
  }
  return a->type != b->type || a->text != b->text ||
         std::bit_cast<std::uint64_t>(a->number) != std::bit_cast<std::uint64_t>(b->number);
}

std::optional<DeclaredDifference> difference_of(const Name& name, const History& a,
                                                const History& b, std::int64_t first,
                                                std::int64_t last) {
  std::set<std::int64_t> steps = {first};
  for (const History* history : {&a, &b}) {
    for (const auto& [step, value] : *history) steps.insert(step);
  }
  for (const std::int64_t step : steps) {
    if (step < first || step > last) continue;
    const DeclaredValue *in_a = at(a, step), *in_b = at(b, step);
    if (!differ(in_a, in_b)) continue;
    const auto& [optimizer, group, text] = name;
    return DeclaredDifference{step, optimizer, group, text, text_of(in_a), text_of(in_b), {}};
  }
  return std::nullopt;
}

}  // namespace

std::vector<DeclaredDifference> declared_differences(const ComparedRun& a, const ComparedRun& b) {
  const std::int64_t first = std::max(a.side.first_step, b.side.first_step);
  const std::int64_t last = std::min(a.side.last_step, b.side.last_step);
  const Histories of_a = histories_of(a), of_b = histories_of(b);
  std::map<Name, DeclaredDifference> found;
  std::size_t common_ranks = 0;
  for (const auto& [rank, values_a] : of_a) {
    const auto other = of_b.find(rank);
    if (other == of_b.end()) continue;
    ++common_ranks;
    std::map<Name, std::pair<History, History>> both;
    for (const auto& [name, history] : values_a) both[name].first = history;
    for (const auto& [name, history] : other->second) both[name].second = history;
    for (const auto& [name, pair] : both) {
      std::optional<DeclaredDifference> one =
          difference_of(name, pair.first, pair.second, first, last);
      if (!one) continue;
      const auto [known, is_new] = found.try_emplace(name, *one);
      std::vector<int> ranks = std::move(known->second.ranks);
      ranks.push_back(rank);
      if (one->step < known->second.step) known->second = *one;
      known->second.ranks = std::move(ranks);
    }
  }
  std::vector<DeclaredDifference> list;
  for (auto& [name, one] : found) {
    if (one.ranks.size() == common_ranks) one.ranks.clear();
    list.push_back(std::move(one));
  }
  std::stable_sort(list.begin(), list.end(),
                   [](const auto& x, const auto& y) { return x.step < y.step; });
  return list;
}

}  // namespace trainmon
