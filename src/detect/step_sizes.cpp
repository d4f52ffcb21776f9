#include "detect/step_sizes.h"

#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"

namespace trainmon::detect {
namespace {

constexpr std::int64_t kMostBetween = 16;  // steps, as where recording was paused

// Of all groups, which follow one schedule. nullopt where one has none, is 0, or where the
// optimizer takes another one in secret, as Prodigy does.
std::optional<double> sum_of_rates(const GroupValues& groups) {
  double sum = 0.0;
  for (const auto& [number, values] : groups) {
    const auto rate = value_of(values, "lr");
    if (!rate || !(*rate > 0.0) || values.contains("d")) return std::nullopt;
    sum += *rate;
  }
  return groups.empty() ? std::nullopt : std::optional(sum);
}

struct Moved {
  double distance = 0.0;  // squares
  double gradient = 0.0;
  bool is_whole = true;  // every tensor has what tells it
  std::vector<std::uint32_t> tensors = {};
};

}  // namespace

// A larger gradient moves weights further where the optimizer does not divide by its size.
bool StepSizes::is_of_gradients(const Line& line, const MeanShifts::Found& shift) {
  constexpr double kPart = 0.5;
  const auto mean = [&](std::size_t begin, std::size_t end) {
    double sum = 0.0;
    for (std::size_t i = begin; i < end; ++i) sum += line.last[i].gradient;
    return sum / static_cast<double>(end - begin);
  };
  const std::size_t first = line.last.size() - 1 - shift.ago;
  const double apart = mean(first, line.last.size()) - mean(first - MeanShifts::kBefore, first);
  return !std::isfinite(apart) || apart / shift.apart > kPart;
}

void StepSizes::check(const Window& window, Findings& found) {
  std::map<std::pair<std::int32_t, std::int32_t>, Moved> all;
  for (const Observation& one : window.now.all()) {
    if (one.quantity != Quantity::grad_reduced || window.has_known_formula(one)) continue;
    Moved& moved = all[{one.rank, window.tensors[one.tensor].optimizer}];
    const Observation* const before =
        window.now.find(one.tensor, Quantity::weight_before, one.rank);
    const Observation* const after = window.now.find(one.tensor, Quantity::weight_after, one.rank);
    moved.is_whole = moved.is_whole && before != nullptr && after != nullptr &&
                     !before->sketch.empty() && !after->sketch.empty();
    if (!moved.is_whole) continue;
    Linear change = after->linear(Evidence::sketches);
    change.add(-1.0, before->linear(Evidence::sketches));
    moved.distance += change.dot(change);
    moved.gradient += one.sum_sq;
    moved.tensors.push_back(one.tensor);  // ascending
  }
  for (auto& [place, moved] : all) {
    const auto [rank, optimizer] = place;
    const GroupValues* const groups = groups_of(window.declared, rank, optimizer);
    const auto rate = groups == nullptr ? std::nullopt : sum_of_rates(*groups);
    // A step that was left out moves nothing.
    if (!rate || !moved.is_whole || moved.distance == 0.0) continue;
    Line& line = lines_[place];
    if (!line.last.empty() && window.now.step > line.last.back().step + kMostBetween) line = {};
    const double distance = 0.5 * std::log(moved.distance) - std::log(*rate);
    line.last.push_back({window.now.step, distance, 0.5 * std::log(moved.gradient)});
    if (line.last.size() > MeanShifts::kRows) line.last.pop_front();
    const auto shift = line.distances.add(distance);
    if (line.found && line.distances.has_ended()) {
      found.add(*std::exchange(line.found, std::nullopt));
    }
    if (!shift || is_of_gradients(line, *shift)) continue;
    Finding& one = line.found.emplace(
        window.notice(Check::update, Stage::update, rank,
                      line.last[line.last.size() - 1 - shift->ago].step, std::move(moved.tensors)));
    one.evidence = Evidence::sketches;
    one.text = "beside its learning rate, the optimizer moves the weights " +
               number_text(std::exp(shift->apart), 2) +
               " times as far as in the 16 steps before, and no gradient explains it";
  }
}

}  // namespace trainmon::detect
