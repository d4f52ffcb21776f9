#include "answers/bias_sums.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "model/kinds.h"

namespace trainmon {
namespace {

constexpr double kSumsApart = 1e-4;  // float32 rounds by far less
constexpr double kAlike = 1e-2;      // of the factors of most biases, in bfloat16, too
constexpr double kLeastSum = 1e-2;   // of the most that it could add up to
constexpr std::size_t kFewest = 3;   // biases that tell a factor

constexpr std::string_view kBias = ".bias";

// The bias of the model itself has no module.
std::string_view module_of(const Series& series) {
  const std::string_view name = series.name;
  if (name == kBias.substr(1)) return "";
  return name.ends_with(kBias) ? name.substr(0, name.size() - kBias.size()) : name;
}

bool is_bias(const Series& series) {
  const bool is_of_weight =
      series.kind == kind::kGradReduced || series.kind == kind::kGradUnreduced;
  return is_of_weight && (series.name.ends_with(kBias) || series.name == kBias.substr(1));
}

// The middle of those that agree best. Under autocast the gradients of some biases are rounded to
// bfloat16, and those of normalisations are not.
double agreed(const std::vector<double>& factors) {
  std::size_t most = 0;
  double middle = factors[factors.size() / 2];
  for (std::size_t begin = 0, end = 0; begin < factors.size(); ++begin) {
    const double width = kSumsApart * std::abs(factors[begin]);
    while (end < factors.size() && factors[end] - factors[begin] <= width) ++end;
    if (end - begin < kFewest || end - begin <= most) continue;
    most = end - begin;
    middle = factors[(begin + end) / 2];
  }
  return middle;
}

}  // namespace

BiasSums::BiasSums(const std::vector<Series>& series) : uses_(series.size()) {
  std::map<std::pair<std::string_view, int>, std::size_t> modules;
  for (const Series& one : series) {
    if (is_bias(one)) modules.try_emplace({module_of(one), one.chunk}, modules.size() + 1);
  }
  for (std::size_t i = 0; i < series.size(); ++i) {
    const Series& one = series[i];
    const bool is_output = one.kind == kind::kActvGrad && one.element == "output";
    if (!is_output && !is_bias(one)) continue;
    const auto known =
        modules.find({is_output ? std::string_view(one.name) : module_of(one), one.chunk});
    if (known == modules.end()) continue;
    uses_[i] = {known->second, is_output, one.kind == kind::kGradUnreduced};
  }
  biases_.resize(modules.size());
}

void BiasSums::add(const LineValue& value) {
  const Use& use = uses_[value.series];
  if (use.bias == 0) return;
  const RowPlace& row = value.place;
  if (is_open_ && (row.step != step_.step || row.restart != step_.restart)) close();
  step_ = row;
  is_open_ = true;
  Bias& bias = biases_[use.bias - 1];
  const double most = value.norm * std::sqrt(static_cast<double>(value.elements));
  const double sum = value.mean * most;
  if (use.is_output) {
    bias.of_output += sum;
  } else if (use.is_unreduced || !bias.is_unreduced) {
    bias.of_gradient = sum;
    bias.most = most;
    bias.is_unreduced = use.is_unreduced;
    bias.place = row;
    bias.place.shape = nullptr;
    bias.series = value.series;
  }
}

bool BiasSums::Bias::is_told() const {
  const bool is_number = of_output != 0.0 && std::isfinite(of_output);
  return is_number && std::abs(of_gradient) > kLeastSum * most;
}

double BiasSums::Bias::apart(double factor) const {
  return std::abs(of_gradient - factor * of_output) / most;
}

// That of a bias with which most others agree.
std::optional<double> BiasSums::common_factor() const {
  std::vector<double> factors;
  for (const Bias& one : biases_) {
    if (one.is_told()) factors.push_back(one.of_gradient / one.of_output);
  }
  if (factors.size() < kFewest) return std::nullopt;
  std::ranges::sort(factors);
  const double middle = agreed(factors);
  const auto agree = std::ranges::count_if(factors, [&](double factor) {
    return std::abs(factor - middle) <= kAlike * std::abs(middle);
  });
  if (2 * agree <= std::ssize(factors) || middle == 0.0) return std::nullopt;
  return middle;
}

void BiasSums::close() {
  const std::optional<double> factor = common_factor();
  for (Bias& one : biases_) {
    if (factor && one.is_told()) {
      const double apart = one.apart(*factor);
      const bool is_far = apart > std::max(kSumsApart, kTimesLargest * one.largest);
      if (is_far && one.steps >= kSteps && !one.off) {
        const double share = one.of_gradient / one.of_output / *factor;
        one.off = {{{0.0, 1.0, one.place, share}, apart, 1, false}, one.series, Measure::sum};
      }
      ++one.steps;
      one.largest = std::max(one.largest, apart);
    }
    one.of_output = one.of_gradient = one.most = 0.0;
    one.is_unreduced = false;
  }
  is_open_ = false;
}

std::vector<LineShift> BiasSums::found() const {
  std::vector<LineShift> all;
  for (const Bias& one : biases_) {
    if (one.off) all.push_back(*one.off);
  }
  return all;
}

void BiasSums::forget() {
  std::ranges::fill(biases_, Bias{});
  is_open_ = false;
}

}  // namespace trainmon
