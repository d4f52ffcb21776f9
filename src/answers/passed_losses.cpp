#include "answers/passed_losses.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "model/first_bad.h"

namespace trainmon {
namespace {

constexpr std::size_t kLooked = 4;  // steps at the beginning, and at the end
constexpr std::size_t kNever = 8;   // values, none of which is finite
constexpr int kReturns = 2;         // to what is finite

}  // namespace

PassedLosses::PassedLosses(const RunRows& run) {
  const auto is_bad_loss = [](const ReadScalar& one) {
    return !std::isfinite(one.value) && is_loss(one.name);
  };
  if (std::ranges::none_of(run.scalars, is_bad_loss)) return;  // of most runs
  for (const ReadScalar& one : run.scalars) {                  // by restart, step
    if (!is_loss(one.name)) continue;
    const Name name(one.restart, one.rank, one.name);
    std::vector<std::int64_t>& steps = last_[name];
    if (!std::isfinite(one.value)) {
      steps.push_back(one.step);
    } else if (!std::exchange(steps, {}).empty()) {
      ++returns_[name];
    }
  }
  for (const auto& [name, steps] : last_) {
    const std::size_t count = steps.size();
    for (std::size_t i = 0; i < count; ++i) {
      if (i < kLooked || i + kLooked >= count) steps_.insert(steps[i]);
    }
  }
}

void PassedLosses::look(const ReadRow& row, const Series& series) {
  if (!steps_.contains(row.step) || !is_parameter_gradient(series.kind)) return;
  bool& are_finite = gradients_.try_emplace({row.restart, row.rank, row.step}, true).first->second;
  are_finite = are_finite && !is_bad(row.flags, row.state);
}

std::vector<ReadScalar> PassedLosses::noticed(const RunRows& run) const {
  std::vector<ReadScalar> all;
  if (last_.empty()) return all;
  std::set<std::string> said;
  std::set<Name> were_finite;
  for (const ReadScalar& one : run.scalars) {
    if (!is_loss(one.name) || said.contains(one.name)) continue;
    Name name(one.restart, one.rank, one.name);
    if (std::isfinite(one.value)) {
      were_finite.insert(std::move(name));
    } else if (were_finite.contains(name) && is_passed(one)) {
      said.insert(one.name);
      all.push_back(one);
    }
  }
  // A few may be of before there is any.
  for (const ReadScalar& one : run.scalars) {
    const auto known = last_.find({one.restart, one.rank, one.name});
    const bool is_never = known != last_.end() && known->second.size() >= kNever &&
                          !were_finite.contains(known->first);
    if (is_never && is_passed(one) && said.insert(one.name).second) all.push_back(one);
  }
  return all;
}

bool PassedLosses::is_passed(const ReadScalar& loss) const {
  const auto returns = returns_.find({loss.restart, loss.rank, loss.name});
  if (returns != returns_.end() && returns->second >= kReturns) return true;
  const auto known = last_.find({loss.restart, loss.rank, loss.name});
  if (known == last_.end() || known->second.empty() || loss.step < known->second.front()) {
    return true;  // it was finite again
  }
  const std::vector<std::int64_t>& steps = known->second;  // ascending
  const auto first = gradients_.lower_bound({loss.restart, loss.rank, steps.front()});
  const auto end = gradients_.upper_bound({loss.restart, loss.rank, steps.back()});
  return std::any_of(first, end, [&](const auto& one) {
    return one.second && std::ranges::binary_search(steps, std::get<std::int64_t>(one.first));
  });
}

}  // namespace trainmon
