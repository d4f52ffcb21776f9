// What log() was given as the norm of all gradients is held against the rows. People log it
// before they clip. So it may also be larger than the norm of what the optimizer used, as long as
// that is one limit. Somebody may mean another norm, so it is never called certain.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "base/text.h"
#include "detect/checks.h"
#include "model/rounding.h"

namespace trainmon::detect {
namespace {

// Norms of all tensors that are computed in these dtypes, and the norm of those norms.
double tolerance_of(DType dtype) {
  return std::max(1e-3, 4.0 * unit_roundoff(dtype));
}

struct Norm {
  double sum_sq = 0.0;
  double tolerance = 0.0;  // 0: there is none
  bool is_finite = true;

  void add(const Norm& other) {
    sum_sq += other.sum_sq;
    tolerance = std::max(tolerance, other.tolerance);
    is_finite = is_finite && other.is_finite;
  }
  double value() const { return std::sqrt(sum_sq); }
  bool is_of(double other) const { return std::abs(other - value()) <= tolerance * value(); }
};

// The gradients of a step, by optimizer: those that a rank has whole, and the shards of all
// ranks. Each shard counts once, for groups of ranks may hold the same one.
class Gradients {
 public:
  explicit Gradients(const Window& window) {
    std::set<std::tuple<std::uint32_t, std::uint64_t, double>> shards;
    std::set<std::int32_t> ranks;
    for (const Observation& one : window.now.all()) {
      if (one.quantity != Quantity::grad_reduced) continue;
      const std::int32_t optimizer = window.tensors[one.tensor].optimizer;
      const Norm norm = {one.sum_sq, tolerance_of(one.dtype), one.is_finite};
      if (one.is_replicated) {
        whole_[one.rank][optimizer].add(norm);
        continue;
      }
      ranks.insert(one.rank);
      if (shards.emplace(one.tensor, one.digest, one.count).second) shards_[optimizer].add(norm);
    }
    has_all_shards_ = ranks.empty() || ranks.size() == window.ranks.size();
  }
  // As a rank knows them; empty where shards are not there.
  std::map<std::int32_t, Norm> of(std::int32_t rank) const {
    if (!has_all_shards_) return {};
    std::map<std::int32_t, Norm> norms = shards_;
    const auto whole = whole_.find(rank);
    if (whole == whole_.end()) return norms;
    for (const auto& [optimizer, norm] : whole->second) norms[optimizer].add(norm);
    return norms;
  }

 private:
  std::map<std::int32_t, std::map<std::int32_t, Norm>> whole_;  // rank, optimizer
  std::map<std::int32_t, Norm> shards_;                         // by optimizer
  bool has_all_shards_ = true;
};

}  // namespace

bool is_gradient_norm(std::string_view name) {
  const std::size_t slash = name.find_last_of("/.");
  std::string last(slash == std::string_view::npos ? name : name.substr(slash + 1));
  for (char& c : last) {
    c = c == ' ' || c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  static const std::set<std::string> kNames = {"grad_norm",        "gradnorm",   "gradient_norm",
                                               "global_grad_norm", "total_norm", "total_grad_norm"};
  return kNames.contains(last);
}

void GradientNorms::check(const Window& window, Findings& found) {
  if (window.logged_norms.empty() || !window.lossy.empty()) return;
  const Gradients gradients(window);
  for (const auto& [rank, logged] : window.logged_norms) {
    Norm all;
    bool is_of_one = false;
    for (const auto& [optimizer, norm] : gradients.of(rank)) {
      all.add(norm);
      is_of_one = is_of_one || norm.is_of(logged.value);
    }
    if (all.tolerance == 0.0 || !all.is_finite) continue;
    found.checked(Check::norm);
    Seen& seen = seen_[rank];
    if (is_of_one || all.is_of(logged.value) || seen.is_said) continue;
    const bool may_be_clipped = std::isfinite(logged.value) && all.value() < logged.value;
    if (may_be_clipped && (!seen.limit || all.is_of(*seen.limit))) {
      seen.limit = all.value();
      continue;
    }
    seen.is_said = true;
    Finding finding = window.finding(Check::norm, Stage::grad_reduced, rank);
    finding.value = std::abs(logged.value - all.value());
    finding.bound = all.tolerance * all.value();
    finding.certain = false;
    finding.text = "the logged " + logged.name + " is " + number_text(logged.value, 6) +
                   ", the norm of the recorded gradients " + number_text(all.value(), 6) +
                   (seen.limit ? "; clipping to one limit does not explain it" : "");
    found.add(std::move(finding));
  }
}

}  // namespace trainmon::detect
