// Pairs are gone through in the order of execution, each with the tolerance of its place.
#include "trainmon/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <stdexcept>
#include <tuple>
#include <unordered_map>

#include "base/text.h"
#include "convert/compare_tolerance.h"
#include "convert/compared_run.h"
#include "convert/row_pairs.h"
#include "tools/kind_order.h"

namespace trainmon {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr std::size_t kNans = 6, kInfs = 7, kCount = 8;
constexpr double kUnknownMovement = 1.0 / 64;  // of a weight that is there in one step only
constexpr std::size_t kRecentSteps = 4;
constexpr double kOwnWeights = 4.0;

bool is_weight(std::string_view kind) {
  return kind == kind::kParamOrigin || kind == kind::kParamUpdated;
}
// What one micro step of one rank computes from its share of the batch.
bool is_of_share(std::string_view kind) {
  const int moment = moment_of(kind);
  return moment == 1 || moment == 2 || kind == kind::kGradMicro;
}
bool is_of_module(std::string_view kind) {
  return kind == kind::kActv || kind == kind::kActvGrad;
}

double largest(const std::array<double, kValueStats>& differences) {
  double found = 0.0;
  for (const double one : differences) found = std::fmax(found, one);
  return found;
}

// Of a pair of weights: the pair of the step before, nullptr at the first, and the furthest that
// either run moved in one of the last steps, relative to the tensor. Before the first step a weight
// before the step has not moved; what one after the step did is taken from the next.
struct WeightStep {
  const RowPair* before = nullptr;
  double moved = 0.0;
};

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
      moved[0] = list.size() > 1 ? moved[1] : kUnknownMovement;
    }
    for (std::size_t k = 0; k < list.size(); ++k) {
      const std::size_t since = k - std::min(k, kRecentSteps);
      steps[list[k]].moved = *std::max_element(moved.begin() + static_cast<std::ptrdiff_t>(since),
                                               moved.begin() + static_cast<std::ptrdiff_t>(k) + 1);
    }
  }
  return steps;
}

// Of weights, what this step did: the difference without the one that was there before. What lies
// within the resolution of the files is none.
std::array<double, kValueStats> differences_of(const RowPair& pair, const WeightStep& step,
                                               double resolution) {
  ComparedValues b = pair.b->values;
  for (std::size_t i = 0; step.before != nullptr && i < kValueStats; ++i) {
    const double there_before = step.before->b->values[i] - step.before->a->values[i];
    if (std::isfinite(there_before)) b[i] -= there_before;
  }
  for (std::size_t i = 0; resolution > 0.0 && i < kValueStats; ++i) {
    // Twice, for a weight is written in two steps; somewhat more, for decimals are not binary.
    if (std::fabs(b[i] - pair.a->values[i]) <= 2.01 * resolution) b[i] = pair.a->values[i];
  }
  return relative_differences(pair.a->values, b);
}

class Comparison {
 public:
  Comparison(const CompareOptions& options, ComparedRun& a, ComparedRun& b, CompareReport& report)
      : options_(options), a_(a), b_(b), report_(report), pairs_(pair_rows(a, b)) {
    find_owners();
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
    if (noise_.is_zero()) {
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

  // Which module a tensor belongs to: a parameter to the one that holds it.
  void find_owners() {
    std::map<std::string, std::uint32_t> modules;
    for (const ComparedTensor& tensor : a_.tensors) {
      std::string module = unwrapped_name(tensor.name);
      if (!is_of_module(tensor.kind)) {
        const std::size_t dot = module.rfind('.');
        module.resize(dot == std::string::npos ? 0 : dot);
      }
      module = std::to_string(tensor.chunk) + ":" + module;
      const auto next = static_cast<std::uint32_t>(modules.size());
      owners_.push_back(modules.try_emplace(std::move(module), next).first->second);
    }
    owned_.resize(modules.size(), 0.0);
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
    double allowed = 0.0;
    if (has_noise_) {
      allowed = std::max(NoiseLevels::kRounding * rounding,
                         noise_.at(pair.a->tensor, tensor.kind, pair.a->step, spread));
    } else {
      allowed = rounding * drift(pair.a->step - first_step_);
    }
    if (is_weight(tensor.kind)) allowed += kNoisyShare * moved;
    if (is_of_module(tensor.kind)) allowed += kOwnWeights * owned_[owners_[pair.a->tensor]];
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

  void look_at(const RowPair& pair, const WeightStep& step) {
    if (has_other_form(pair) || is_split_otherwise(pair)) return;
    const auto differences = differences_of(pair, step, a_.resolution + b_.resolution);
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
      double& owned = owned_[owners_[pair.a->tensor]];
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
  std::int64_t first_step_ = 0;
  NoiseLevels noise_;
  bool has_noise_ = false;
  bool has_other_shares_ = false;
  bool has_said_split_ = false;
  std::vector<std::uint32_t> owners_;  // tensor of A -> module
  std::vector<double> owned_;          // module -> how far its weights are apart, at most so far
  std::map<std::uint32_t, Difference> worst_;  // by tensor of A
  std::map<std::pair<std::string, std::int64_t>, CompareReport::Level> levels_;
  std::set<std::uint32_t> said_size_;
  std::set<std::uint32_t> said_dtype_;
};

std::string contents(const char* which, const ComparedRun& run) {
  std::string text = std::string(which) + ", " + printable(run.side.path.native()) + " (" +
                     run.side.format + "), has ";
  if (run.rows.empty()) return text + "no row that was selected";
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
  CompareReport report;
  Comparison comparison(options, a, b, report);
  const ComparedSide side_a = a.side, side_b = b.side;
  if (options.null) {
    ComparedRun null = read_compared(*options.null, options.select);
    comparison.add_null(null);
    report.null = null.side;
  }
  comparison.run();
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
