// Modules are told by names: what is before the last dot of a parameter's.
#include "compare/gradient_scale.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "compare/compare.h"
#include "trainmon/record.h"

namespace trainmon {
namespace {

// The gradient of a weight is smaller than what it was summed of: signs cancel, inputs are small.
// Matters where a gradient is so far below the others of its module that it may be rounding alone.
constexpr double kCancelled = 4.0;
constexpr double kFarBelow = 1.0 / 16;

bool is_gradient_kind(std::string_view kind) {
  return kind == kind::kGradUnreduced || kind == kind::kGradMicro || kind == kind::kGradReduced;
}

}  // namespace

std::vector<std::uint32_t> modules_of(const ComparedRun& run) {
  std::map<std::string, std::uint32_t> modules;
  std::vector<std::uint32_t> numbers;
  for (const ComparedTensor& tensor : run.tensors) {
    std::string module = unwrapped_name(tensor.name);
    if (!is_of_module(tensor.kind)) {
      const std::size_t dot = module.rfind('.');
      module.resize(dot == std::string::npos ? 0 : dot);
    }
    module = std::to_string(tensor.chunk) + ":" + module;
    const auto next = static_cast<std::uint32_t>(modules.size());
    numbers.push_back(modules.try_emplace(std::move(module), next).first->second);
  }
  return numbers;
}

double root_mean_square(const RowPair& pair) {
  const auto of = [](const ComparedRow& row) {
    const double size = row.values[kNorm] / std::sqrt(row.values[kCount]);
    return std::isfinite(size) ? size : 0.0;
  };
  return std::max(of(*pair.a), of(*pair.b));
}

GradientScales::GradientScales(const ComparedRun& a, const std::vector<std::uint32_t>& modules,
                               const std::vector<RowPair>& pairs)
    : modules_(modules) {
  std::map<std::string_view, int> numbers;
  for (const ComparedTensor& tensor : a.tensors) {
    const bool has_scale =
        is_gradient_kind(tensor.kind) || tensor.kind == "exp_avg" || tensor.kind == "exp_avg_sq";
    const int next = static_cast<int>(numbers.size());
    kinds_.push_back(has_scale ? numbers.try_emplace(tensor.kind, next).first->second : -1);
    is_gradient_.push_back(is_gradient_kind(tensor.kind) ? 1 : 0);
  }
  std::map<Place, std::vector<double>> of_model;
  for (const RowPair& pair : pairs) {
    if (kinds_[pair.a->tensor] < 0) continue;
    const double size = root_mean_square(pair);
    Scale& scale = scales_[place(pair, modules_[pair.a->tensor])];
    scale.largest = std::max(scale.largest, size);
    ++scale.members;
    of_model[place(pair, -1)].push_back(size);
  }
  for (auto& [where, sizes] : of_model) {
    const auto middle = sizes.begin() + static_cast<std::ptrdiff_t>(sizes.size() / 2);
    std::nth_element(sizes.begin(), middle, sizes.end());
    scales_[where].largest = *middle;
  }
}

GradientScales::Place GradientScales::place(const RowPair& pair, std::int64_t module) const {
  const ComparedRow& row = *pair.a;
  return {kinds_[row.tensor], row.step, row.attempt, row.place, pair.rank(), module};
}

double GradientScales::at(const RowPair& pair) const {
  if (kinds_[pair.a->tensor] < 0) return 0.0;
  auto found = scales_.find(place(pair, modules_[pair.a->tensor]));
  if (found == scales_.end() || found->second.members < 2) found = scales_.find(place(pair, -1));
  if (found == scales_.end()) return 0.0;
  const double largest = found->second.largest;
  return root_mean_square(pair) < kFarBelow * largest ? kCancelled * largest : largest;
}

bool GradientScales::is_gradient(const RowPair& pair) const {
  return is_gradient_[pair.a->tensor] != 0;
}

}  // namespace trainmon
