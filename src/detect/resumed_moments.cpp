// Steps come from the newest start that has them. So the step before the first one of a start is
// that of the checkpoint, whatever the earlier start did after it.
#include "detect/resumed_moments.h"

#include <algorithm>
#include <cmath>

namespace trainmon::detect {
namespace {

// For so many tensors it is tried whose moments they have.
constexpr std::size_t kTried = 8;

Check check_of(Quantity quantity) {
  return quantity == Quantity::exp_avg ? Check::exp_avg : Check::exp_avg_sq;
}

bool is_moment(const Observation& one) {
  return one.quantity == Quantity::exp_avg || one.quantity == Quantity::exp_avg_sq;
}

// What tells Adam, AdamW, NAdam and RAdam apart.
bool are_of_one_class(const DeclaredGroup& a, const DeclaredGroup& b) {
  return a.contains("amsgrad") == b.contains("amsgrad") &&
         a.contains("momentum_decay") == b.contains("momentum_decay") &&
         is_set(a, "decoupled_weight_decay") == is_set(b, "decoupled_weight_decay");
}

bool is_of_same_part(const Observation& a, const Observation& b) {
  return a.count == b.count && a.part == b.part && a.dtype == b.dtype;
}

bool follows(const Window& window, const MomentRows& moment) {
  const auto far = distance_of_moment(window, moment);
  return far && far->is_within();
}

}  // namespace

void ResumedMoments::check(const Window& window, Findings& found) {
  if (!open_.empty()) confirm(window, found);
  if (earlier_) compare(window, found);
}

bool ResumedMoments::goes_on(const Window& window, std::int32_t rank) const {
  std::size_t compared = 0;
  for (const Observation& left : earlier_->left.all()) {
    if (left.rank != rank || left.quantity != Quantity::weight_after) continue;
    const Observation* const now = window.now.find(left.tensor, Quantity::weight_before, rank);
    if (now == nullptr || now->forward_changes || !are_comparable(left, *now)) continue;
    if (!is_of_same_part(left, *now) || !are_equal(left, *now)) return false;
    ++compared;
  }
  return compared > 0;
}

bool ResumedMoments::is_same_class(const Window& window, const Observation& moment) const {
  const GroupValues* const now = window.groups(moment);
  const GroupValues* const before =
      groups_of(earlier_->declared, moment.rank, window.tensors[moment.tensor].optimizer);
  if (now == nullptr || now->empty() || before == nullptr || before->empty()) return false;
  return are_of_one_class(before->begin()->second, now->begin()->second);
}

ResumedMoments::Apart ResumedMoments::apart(const Window& window, std::int32_t rank,
                                            Findings& found) const {
  Apart all;
  for (const Observation& now : window.now.all()) {
    if (now.rank != rank || !is_moment(now) || !now.is_finite || now.is_before_step) continue;
    const Observation* const before = earlier_->left.find(now.tensor, now.quantity, rank);
    const auto find = [&](Quantity quantity) {
      return window.now.find(now.tensor, quantity, rank);
    };
    const Observation* const gradient = find(Quantity::grad_reduced);
    const Observation* const weight = find(Quantity::weight_before);
    if (before == nullptr || gradient == nullptr || weight == nullptr) continue;
    if (!before->is_finite || before->is_before_step || !gradient->is_finite) continue;
    if (!is_of_same_part(*before, now) || gradient->count != now.count) continue;
    if (window.has_edit(*weight, now) || !is_same_class(window, now)) continue;
    const Check check = check_of(now.quantity);
    if (!earlier_->held.has_held(check, rank, Held::place(check, now))) continue;
    const MomentRows moment{&now, before, gradient, weight};
    const auto far = distance_of_moment(window, moment);
    if (!far) continue;
    found.checked(check, far->evidence);
    if (far->is_within()) continue;
    all.moments.push_back(moment);
    if (follows(window, {&now, nullptr, gradient, weight})) ++all.fresh;
  }
  return all;
}

std::string ResumedMoments::source(const Window& window, const Apart& all) const {
  if (2 * all.fresh > all.moments.size()) {
    return "; they begin at zero, as where the state of the optimizer was not loaded";
  }
  std::size_t tried = 0;
  for (const MomentRows& moment : all.moments) {
    const Observation& now = *moment.now;
    if (now.quantity != Quantity::exp_avg) continue;
    if (tried++ == kTried) break;
    const auto is_from = [&](const Observation& other) {
      return other.rank == now.rank && other.quantity == now.quantity &&
             other.tensor != now.tensor && is_of_same_part(other, now) && other.absmax > 0.0 &&
             follows(window, {&now, &other, moment.gradient, moment.weight});
    };
    const auto from = std::ranges::find_if(earlier_->left.all(), is_from);
    if (from == earlier_->left.all().end()) continue;
    return "; those of other tensors were loaded: " + tensor_text(window.tensors[now.tensor]) +
           " has those of " + tensor_text(window.tensors[from->tensor]);
  }
  return "";
}

// As where the state of an optimizer is loaded in the dtype of its parameters.
void ResumedMoments::check_dtypes(const Window& window, std::int32_t rank, Findings& found) const {
  std::vector<std::uint32_t> tensors;
  std::string dtypes;
  for (const Observation& left : earlier_->left.all()) {
    if (left.rank != rank || !is_moment(left)) continue;
    const Observation* const now = window.now.find(left.tensor, left.quantity, rank);
    if (now == nullptr || now->dtype == left.dtype) continue;
    if (tensors.empty()) {
      dtypes = std::string(dtype_name(now->dtype)) + ", which were in " +
               std::string(dtype_name(left.dtype));
    }
    if (std::ranges::find(tensors, left.tensor) == tensors.end()) tensors.push_back(left.tensor);
  }
  if (tensors.empty()) return;
  Finding one = window.finding(Check::config, Stage::start, rank, std::move(tensors));
  one.certain = false;
  one.text = "this start goes on with the weights that restart " +
             std::to_string(earlier_->left.restart) + " left, but with moments in " + dtypes;
  found.add(std::move(one));
}

void ResumedMoments::compare(const Window& window, Findings& found) {
  for (const std::int32_t rank : window.ranks) {
    if (!goes_on(window, rank)) continue;
    check_dtypes(window, rank, found);
    const Apart all = apart(window, rank, found);
    if (all.moments.empty()) continue;
    const MomentRows& first = all.moments.front();
    Open& open = open_.emplace_back();
    Finding& one = open.finding;
    one = window.finding(check_of(first.now->quantity), Stage::moments, rank);
    for (const MomentRows& moment : all.moments) {
      open.failed.emplace_back(moment.now->tensor, check_of(moment.now->quantity));
    }
    one.certain = false;
    one.evidence = evidence_of_sums({first.now, first.before, first.gradient});
    one.text = "this start goes on with the weights that restart " +
               std::to_string(earlier_->left.restart) + " left, but not with its moments" +
               source(window, all);
  }
  earlier_.reset();
}

// A loop that makes its moments otherwise does so in each step.
void ResumedMoments::confirm(const Window& window, Findings& found) {
  for (Open& open : std::exchange(open_, {})) {
    Finding& one = open.finding;
    if (one.restart != window.now.restart || one.step + 1 != window.now.step) continue;
    const std::int32_t rank = one.ranks.front();
    std::erase_if(open.failed, [&](const auto& failed) {
      const auto place = Held::place(failed.second, failed.first, Quantity::exp_avg);
      return !window.held.has_held(failed.second, rank, place);
    });
    if (open.failed.empty()) continue;
    one.check = open.failed.front().second;
    if (one.check == Check::exp_avg_sq) one.evidence = Evidence::statistics;
    for (const auto& [tensor, check] : open.failed) {
      if (one.tensors.empty() || one.tensors.back() != tensor) one.tensors.push_back(tensor);
    }
    found.add(std::move(one));
  }
}

}  // namespace trainmon::detect
