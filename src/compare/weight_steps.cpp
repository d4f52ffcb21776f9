// Steps of a tensor in a row, each with the one before.
#include "compare/weight_steps.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <tuple>

#include "trainmon/record.h"

namespace trainmon {
namespace {

constexpr double kUnknownMovement = 1.0 / 64;  // of a weight that is there in one step only
constexpr std::size_t kRecentSteps = 4;

}  // namespace

bool is_weight(std::string_view kind) {
  return kind == kind::kParamOrigin || kind == kind::kParamUpdated;
}

double largest(const std::array<double, kValueStats>& differences) {
  double found = 0.0;
  for (const double one : differences) found = std::fmax(found, one);
  return found;
}

std::vector<WeightStep> weight_steps(const ComparedRun& a, const std::vector<RowPair>& pairs) {
  std::vector<WeightStep> steps(pairs.size());
  std::map<std::tuple<std::uint32_t, std::int32_t>, std::vector<std::size_t>> tensors;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    if (!is_weight(a.tensors[pairs[i].a->tensor].kind)) continue;
    tensors[{pairs[i].a->tensor, pairs[i].rank()}].push_back(i);
  }
  for (const auto& [of, list] : tensors) {
    std::vector<double> moved(list.size(), 0.0);
    for (std::size_t k = 1; k < list.size(); ++k) {
      const RowPair &before = pairs[list[k - 1]], &here = pairs[list[k]];
      const double change =
          std::fmax(largest(relative_differences(before.a->values, here.a->values)),
                    largest(relative_differences(before.b->values, here.b->values)));
      moved[k] = std::isfinite(change) ? change : 0.0;
      steps[list[k]].before = &before;
    }
    if (a.tensors[std::get<0>(of)].kind == kind::kParamUpdated) {
      moved[0] = list.size() > 2   ? std::max(moved[1], moved[2])
                 : list.size() > 1 ? moved[1]
                                   : kUnknownMovement;
    }
    for (std::size_t k = 0; k < list.size(); ++k) {
      const std::size_t since = k - std::min(k, kRecentSteps);
      steps[list[k]].moved = *std::max_element(moved.begin() + static_cast<std::ptrdiff_t>(since),
                                               moved.begin() + static_cast<std::ptrdiff_t>(k) + 1);
    }
  }
  return steps;
}

std::array<double, kValueStats> differences_of(const RowPair& pair, const WeightStep& step,
                                               double resolution, double scale) {
  ComparedValues b = pair.b->values;
  for (std::size_t i = 0; step.before != nullptr && i < kValueStats; ++i) {
    const double there_before = step.before->b->values[i] - step.before->a->values[i];
    if (std::isfinite(there_before)) b[i] -= there_before;
  }
  for (std::size_t i = 0; resolution > 0.0 && i < kValueStats; ++i) {
    // Twice, for a weight is written in two steps; somewhat more, for decimals are not binary.
    if (std::fabs(b[i] - pair.a->values[i]) <= 2.01 * resolution) b[i] = pair.a->values[i];
  }
  return relative_differences(pair.a->values, b, scale);
}

}  // namespace trainmon
