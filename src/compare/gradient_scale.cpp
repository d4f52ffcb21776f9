// Modules are told by names: what is before the last dot of a parameter's.
#include "compare/gradient_scale.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "model/first_bad.h"
#include "trainmon/record.h"

namespace trainmon {
namespace {

// The gradient of a weight is smaller than what it was summed of: signs cancel, inputs are small.
// Matters where a gradient is so far below the others of its module that it may be rounding alone.
constexpr double kCancelled = 4.0;
constexpr double kFarBelow = 1.0 / 16;

}  // namespace

bool has_gradient_scale(std::string_view kind) {
  return is_parameter_gradient(kind) || kind == "exp_avg" || kind == "exp_avg_sq";
}

double root_mean_square(const ComparedRow& a, const ComparedRow& b) {
  const auto of = [](const ComparedRow& row) {
    const double size = row.values[kNorm] / std::sqrt(row.values[kCount]);
    return std::isfinite(size) ? size : 0.0;
  };
  return std::max(of(a), of(b));
}

void GradientScales::set_pairs(const std::vector<RowPair>& pairs, const std::vector<ComparedRow>& a,
                               const std::vector<int>& kinds,
                               const std::vector<std::uint32_t>& modules) {
  std::map<std::tuple<int, std::int32_t, std::int32_t, std::int32_t, std::int64_t>, int> known;
  std::map<std::tuple<int, std::int32_t, std::int32_t, std::int32_t>, int> models;
  places_.assign(pairs.size(), {});
  sizes_.assign(pairs.size(), 0.0);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const RowPair& pair = pairs[i];
    const int kind = kinds[pair.tensor];
    if (kind < 0) continue;
    const std::tuple model(kind, a[pair.a].attempt, pair.place, pair.rank);
    const auto module = std::tuple_cat(model, std::tuple(std::int64_t{modules[pair.tensor]}));
    places_[i].module = known.try_emplace(module, static_cast<int>(known.size())).first->second;
    places_[i].model = models.try_emplace(model, static_cast<int>(models.size())).first->second;
  }
  modules_.resize(known.size());
  models_.resize(models.size());
  medians_.resize(models.size());
}

void GradientScales::measure(const std::vector<RowPair>& pairs, const std::vector<ComparedRow>& a,
                             const std::vector<ComparedRow>& b) {
  std::ranges::fill(modules_, Scale());
  for (std::vector<double>& sizes : models_) sizes.clear();
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const Place& place = places_[i];
    if (place.module < 0) continue;
    const double size = root_mean_square(a[pairs[i].a], b[pairs[i].b]);
    sizes_[i] = size;
    Scale& scale = modules_[static_cast<std::size_t>(place.module)];
    scale.largest = std::max(scale.largest, size);
    ++scale.members;
    models_[static_cast<std::size_t>(place.model)].push_back(size);
  }
  for (std::size_t i = 0; i < models_.size(); ++i) {
    std::vector<double>& sizes = models_[i];
    const auto middle = sizes.begin() + static_cast<std::ptrdiff_t>(sizes.size() / 2);
    std::nth_element(sizes.begin(), middle, sizes.end());
    medians_[i] = *middle;
  }
}

double GradientScales::at(std::size_t pair) const {
  const Place& place = places_[pair];
  if (place.module < 0) return 0.0;
  const Scale& module = modules_[static_cast<std::size_t>(place.module)];
  const double largest =
      module.members < 2 ? medians_[static_cast<std::size_t>(place.model)] : module.largest;
  return sizes_[pair] < kFarBelow * largest ? kCancelled * largest : largest;
}

}  // namespace trainmon
