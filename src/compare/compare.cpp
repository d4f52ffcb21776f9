// Pairs are gone through in the order of execution, each with the tolerance of its place.
#include "compare/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <stdexcept>
#include <tuple>

#include "base/text.h"
#include "compare/compare_tolerance.h"
#include "compare/compared_declared.h"
#include "compare/compared_run.h"
#include "compare/gradient_scale.h"
#include "compare/row_pairs.h"
#include "compare/weight_steps.h"
#include "model/first_bad.h"
#include "model/rounding.h"

namespace trainmon {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kOwnWeights = 4.0;

// What one micro step of one rank computes from its share of the batch.
bool is_of_share(std::string_view kind) {
  const int moment = moment_of(kind);
  return moment == 1 || moment == 2 || kind == kind::kGradMicro;
}

class Comparison {
 public:
  Comparison(const CompareOptions& options, ComparedRun& a, ComparedRun& b, CompareReport& report)
      : options_(options),
        a_(a),
        b_(b),
        report_(report),
        pairs_(pair_rows(a, b)),
        modules_(modules_of(a)),
        scales_(a, modules_, pairs_) {
    owned_.resize(a.tensors.size(), 0.0);
    is_bias_.resize(a.tensors.size(), 0);
    find_biases();
    // Sizes that differ prove that shares do.
    for (const RowPair& pair : pairs_) {
      has_other_shares_ = has_other_shares_ || (has_other_size(pair) && is_of_share(kind(pair)));
    }
  }

  void add_null(ComparedRun& null) {
    const std::vector<RowPair> pairs = pair_rows(a_, null);
    const std::vector<WeightStep> steps = weight_steps(a_, pairs);
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      if (has_other_size(pairs[i])) continue;
      noise_.add(pairs[i].a->tensor, kind(pairs[i]), pairs[i].a->step,
                 levels_of(differences_of(pairs[i], steps[i], a_.resolution + null.resolution)));
    }
    noise_.end();
    if (pairs.empty()) throw std::runtime_error("--null has no row in common with A");
    if (noise_.is_zero() && null.side.not_used.empty() && a_.side.unmatched == 0) {
      report_.remarks.emplace_back(
          "the repeated run is equal to A to the bit: it says nothing of how runs wander");
    }
    has_noise_ = true;
  }

  void run() {
    const std::vector<WeightStep> steps = weight_steps(a_, pairs_);
    if (!pairs_.empty()) first_step_ = pairs_.front().a->step;
    for (std::size_t i = 0; i < pairs_.size(); ++i) look_at(pairs_[i], steps[i]);
    report_.tensors = static_cast<std::int64_t>(worst_.size());
    for (const auto& [tensor, worst] : worst_) {
      report_.tensors_beyond += worst.ratio > 1.0 ? 1 : 0;
      report_.worst.push_back(worst);
    }
    std::stable_sort(report_.worst.begin(), report_.worst.end(),
                     [](const Difference& x, const Difference& y) { return x.ratio > y.ratio; });
    if (report_.worst.size() > options_.worst) report_.worst.resize(options_.worst);
    for (auto& [of, level] : levels_) report_.levels.push_back(std::move(level));
  }

  std::size_t pairs() const { return pairs_.size(); }

 private:
  const std::string& kind(const RowPair& pair) const { return a_.tensors[pair.a->tensor].kind; }

  static bool has_other_size(const RowPair& pair) {
    const double a = pair.a->values[kCount], b = pair.b->values[kCount];
    return a != b && !std::isnan(a) && !std::isnan(b);
  }

  // A batch that is split otherwise, among micro steps or ranks: only what is summed over it is the
  // same.
  bool is_split_otherwise(const RowPair& pair) {
    if (!has_other_shares_ || !is_of_share(kind(pair))) return false;
    const std::int32_t here = a_.backwards.at(pair.a->step), there = b_.backwards.at(pair.b->step);
    const bool has_other_world = a_.world_size != b_.world_size;
    if (here == there && !has_other_world) return false;
    if (!has_said_split_) {
      has_said_split_ = true;
      report_.remarks.push_back("the batch is split otherwise (" +
                                (has_other_world
                                     ? "ranks: " + std::to_string(a_.world_size) + " in A, " +
                                           std::to_string(b_.world_size) + " in B"
                                     : "backwards in step " + std::to_string(pair.a->step) + ": " +
                                           std::to_string(here) + " in A, " +
                                           std::to_string(there) + " in B") +
                                "): what belongs to a part of it is not compared");
    }
    return true;
  }

  // A parameter smaller than another one of its module, as the bias of a linear layer.
  void find_biases() {
    std::vector<double> largest_of(owned_.size(), 0.0);
    const auto size = [](const RowPair& pair) { return std::fmax(pair.a->values[kCount], 0.0); };
    for (const RowPair& pair : pairs_) {
      if (!is_weight(kind(pair))) continue;
      double& known = largest_of[modules_[pair.a->tensor]];
      known = std::max(known, size(pair));
    }
    for (const RowPair& pair : pairs_) {
      is_bias_[pair.a->tensor] = size(pair) < largest_of[modules_[pair.a->tensor]];
    }
  }

  static std::string parameter_of(const ComparedTensor& tensor) {
    return std::to_string(tensor.chunk) + ":" + unwrapped_name(tensor.name);
  }

  // How much of a weight's movement may be made of rounding.
  double share_of(const RowPair& pair) const {
    if (is_bias_[pair.a->tensor] != 0) return kNoiseShare;
    return noisy_.contains(parameter_of(a_.tensors[pair.a->tensor])) ? kNoiseShare : kNoisyShare;
  }

  double tolerance(const RowPair& pair, Spread spread, double moved) const {
    const ComparedTensor& tensor = a_.tensors[pair.a->tensor];
    const ComparedTensor& other = b_.tensors[pair.b->tensor];
    double roundoff = std::max(tensor.has_dtype ? unit_roundoff(tensor.dtype) : 0.0,
                               other.has_dtype ? unit_roundoff(other.dtype) : 0.0);
    if (!tensor.has_dtype && !other.has_dtype) roundoff = unit_roundoff(DType::float32);
    // Whatever A computes in few bits, its gradients have no more of them. B does not count here:
    // that it computes in fewer bits would be a finding.
    if (!is_weight(tensor.kind)) roundoff = std::max(roundoff, a_.roundoff);
    const double size = pair.a->values[kCount];
    const double rounding =
        rounding_level(spread, roundoff, std::isnan(size) ? 0 : static_cast<std::int64_t>(size));
    // A repeat may be quieter than another order of summation: it only ever widens.
    double allowed = rounding * drift(pair.a->step - first_step_);
    if (has_noise_) {
      allowed = std::max(allowed, noise_.at(pair.a->tensor, tensor.kind, pair.a->step, spread));
    }
    if (is_weight(tensor.kind)) allowed += share_of(pair) * moved;
    if (is_of_module(tensor.kind)) allowed += kOwnWeights * weights_apart_;
    return allowed * options_.factor;
  }

  Difference difference(const RowPair& pair, std::size_t stat) const {
    const ComparedTensor& tensor = a_.tensors[pair.a->tensor];
    Difference out;
    out.step = pair.a->step;
    out.attempt = pair.a->attempt;
    out.micro_step = pair.a->accum;
    out.call = pair.a->call;
    out.rank = pair.rank();
    out.kind = tensor.kind;
    out.chunk = tensor.chunk;
    out.name = tensor.name;
    out.element = tensor.element;
    out.stat = stat_name(kComparedStats[stat]);
    out.a = pair.a->values[stat];
    out.b = pair.b->values[stat];
    return out;
  }

  // Where one run has numbers that the other has not: nothing tolerates that.
  std::optional<Difference> not_finite(const RowPair& pair) const {
    const auto unequal = [&](std::size_t stat) {
      const double a = pair.a->values[stat], b = pair.b->values[stat];
      return !std::isnan(a) && !std::isnan(b) && a != b;
    };
    for (const std::size_t stat : {kNans, kInfs}) {
      if (!unequal(stat)) continue;
      Difference out = difference(pair, stat);
      out.difference = out.ratio = kInf;
      return out;
    }
    // Sources without counts: an infinite value says the same.
    for (std::size_t stat = 0; stat < kValueStats; ++stat) {
      if (!unequal(stat) ||
          (std::isfinite(pair.a->values[stat]) && std::isfinite(pair.b->values[stat]))) {
        continue;
      }
      Difference out = difference(pair, stat);
      out.difference = out.ratio = kInf;
      return out;
    }
    return std::nullopt;
  }

  // How far the weights are apart that an activation was computed with: those of its module, and
  // of the module whose output it is, which is told by equal values.
  void find_weights_apart(const RowPair& pair) {
    weights_apart_ = owned_[modules_[pair.a->tensor]];
    const ComparedValues& values = pair.a->values;
    if (kind(pair) != kind::kActv || std::isnan(values[0] + values[1] + values[4])) return;
    if (pair.a->step != outputs_step_) outputs_.clear();
    outputs_step_ = pair.a->step;
    double& known = outputs_[{pair.rank(), pair.a->place, values[0], values[1], values[4]}];
    weights_apart_ = known = std::max(known, weights_apart_);
  }

  void look_at(const RowPair& pair, const WeightStep& step) {
    if (has_other_form(pair) || is_split_otherwise(pair)) return;
    if (is_of_module(kind(pair))) find_weights_apart(pair);
    const double scale = scales_.at(pair);
    const auto differences = differences_of(pair, step, a_.resolution + b_.resolution, scale);
    if (scales_.is_gradient(pair)) {
      const double own = root_mean_square(pair);
      if (own > 0.0 && own < tolerance(pair, Spread::single, 0.0) * scale) {
        noisy_.insert(parameter_of(a_.tensors[pair.a->tensor]));
      }
    }
    std::optional<Difference> found = not_finite(pair);
    const bool is_bad = found.has_value();
    for (std::size_t stat = 0; stat < kValueStats && !is_bad; ++stat) {
      if (std::isnan(differences[stat])) continue;
      const double allowed = tolerance(pair, spread_of(stat), step.moved);
      const double ratio = differences[stat] == 0.0 ? 0.0 : differences[stat] / allowed;
      if (found && ratio <= found->ratio) continue;
      found = difference(pair, stat);
      found->difference = differences[stat];
      found->tolerance = allowed;
      found->ratio = ratio;
    }
    const ComparedTensor& tensor = a_.tensors[pair.a->tensor];
    if (is_weight(tensor.kind)) {
      double& owned = owned_[modules_[pair.a->tensor]];
      owned = std::max(owned, largest(relative_differences(pair.a->values, pair.b->values)));
    }
    if (found) take(pair, *found);
  }

  void take(const RowPair& pair, const Difference& found) {
    ++report_.rows;
    report_.beyond += found.ratio > 1.0 ? 1 : 0;
    if (found.ratio > 1.0 && !report_.first) report_.first = found;
    const auto [worst, is_new] = worst_.try_emplace(pair.a->tensor, found);
    if (!is_new && found.ratio > worst->second.ratio) worst->second = found;
    CompareReport::Level& level = levels_[{found.kind, found.step}];
    if (level.name.empty() || found.ratio > level.ratio) {
      level = {found.kind, found.step, found.ratio,
               found.name + (found.element.empty() ? "" : " " + found.element)};
    }
  }

  bool has_other_form(const RowPair& pair) {
    const ComparedTensor& tensor = a_.tensors[pair.a->tensor];
    const ComparedTensor& other = b_.tensors[pair.b->tensor];
    if (tensor.has_dtype && other.has_dtype && tensor.dtype != other.dtype &&
        said_dtype_.insert(pair.a->tensor).second) {
      report_.different_dtype.push_back(tensor_text(tensor) + ": " +
                                        std::string(dtype_name(tensor.dtype)) + " and " +
                                        std::string(dtype_name(other.dtype)));
    }
    if (!has_other_size(pair)) return false;
    const double a = pair.a->values[kCount], b = pair.b->values[kCount];
    if (said_size_.insert(pair.a->tensor).second) {
      report_.different_size.push_back(tensor_text(tensor) + ": " +
                                       grouped(static_cast<std::int64_t>(a)) + " and " +
                                       grouped(static_cast<std::int64_t>(b)) + " elements");
    }
    return true;
  }

  const CompareOptions& options_;
  ComparedRun& a_;
  ComparedRun& b_;
  CompareReport& report_;
  const std::vector<RowPair> pairs_;
  const std::vector<std::uint32_t> modules_;  // tensor of A -> module
  const GradientScales scales_;
  std::vector<char> is_bias_;  // tensor of A
  double weights_apart_ = 0.0;
  std::map<std::tuple<std::int32_t, std::int32_t, double, double, double>, double> outputs_;
  std::int64_t outputs_step_ = 0;  // that outputs_ are of
  std::set<std::string> noisy_;    // parameters whose gradient was rounding and nothing else
  std::int64_t first_step_ = 0;
  NoiseLevels noise_;
  bool has_noise_ = false;
  bool has_other_shares_ = false;
  bool has_said_split_ = false;
  std::vector<double> owned_;  // module -> how far its weights are apart, at most so far
  std::map<std::uint32_t, Difference> worst_;  // by tensor of A
  std::map<std::pair<std::string, std::int64_t>, CompareReport::Level> levels_;
  std::set<std::uint32_t> said_size_;
  std::set<std::uint32_t> said_dtype_;
};

std::string contents(const char* which, const ComparedRun& run) {
  std::string text = std::string(which) + ", " + printable(run.side.path.native()) + " (" +
                     run.side.format + "), has ";
  if (run.rows.empty()) {
    return text + "no row that was selected" +
           (run.side.not_used.empty() ? "" : " (" + printable(run.side.not_used[0]) + ")") +
           (run.holds.empty() ? "" : "; it has " + run.holds);
  }
  text += "steps " + std::to_string(run.side.first_step) + " to " +
          std::to_string(run.side.last_step) + ", kinds";
  for (const std::string& kind : run.side.kinds) text += " " + printable(kind);
  text += ", " + std::to_string(run.tensors.size()) + " tensors such as " +
          printable(run.tensors.front().name.empty() ? "(root)" : run.tensors.front().name);
  return text;
}

}  // namespace

CompareReport compare(const CompareOptions& options) {
  if (!(options.factor > 0.0) || !std::isfinite(options.factor)) {
    throw std::invalid_argument("the factor on tolerances must be a positive number, not " +
                                number_text(options.factor));
  }
  ComparedRun a = read_compared(options.a, options.select);
  ComparedRun b = read_compared(options.b, options.select);
  take_common_ranks(a, b);
  CompareReport report;
  Comparison comparison(options, a, b, report);
  const ComparedSide side_a = a.side, side_b = b.side;
  if (options.null) {
    ComparedRun null = read_compared(*options.null, options.select);
    take_common_ranks(a, null);
    comparison.add_null(null);
    report.null = null.side;
  }
  comparison.run();
  report.declared = declared_differences(a, b);
  report.a = side_a;
  report.b = side_b;
  if (report.rows > 0) return report;
  if (comparison.pairs() == 0) {
    throw std::runtime_error("the runs have no row in common: " + contents("A", a) + "; " +
                             contents("B", b));
  }
  throw std::runtime_error("no row of the runs can be compared: " +
                           (report.different_size.empty()
                                ? "none has a value"
                                : "sizes differ, as of " + printable(report.different_size[0])));
}

}  // namespace trainmon
