// Steps come from the newest start that has them. So the step before the first one of a start is
// that of the checkpoint, whatever the earlier start did after it.
#include "detect/resumed_weights.h"

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace trainmon::detect {
namespace {

// So many steps of a rank, and of all, of which weights are known again.
constexpr std::size_t kSteps = 4096, kStepsOfAll = std::size_t{1} << 20;
constexpr std::size_t kNamedOwners = 8;  // weights of which it is tried whose they are

// Of all weights that each rank has in a step, in any order.
std::map<std::int32_t, std::uint64_t> hashes_of(const StepEvidence& step, Quantity quantity) {
  std::map<std::int32_t, std::uint64_t> hashes;
  for (const Observation& one : step.all()) {
    if (one.quantity != quantity) continue;
    const std::uint64_t bits = one.fingerprint ? *one.fingerprint : one.digest;
    hashes[one.rank] += mixed(mixed(one.tensor) ^ bits);
  }
  return hashes;
}

// How far the weights are from what was left, as a share of their norm: the largest share.
std::optional<double> largest_share(
    const std::vector<std::pair<const Observation*, const Observation*>>& weights) {
  double largest = 0.0;
  for (const auto& [left, now] : weights) {
    if (left->sketch.empty() || now->sketch.empty() || left->norm() == 0.0) return std::nullopt;
    Linear change = now->linear(Evidence::sketches);
    change.add(-1.0, left->linear(Evidence::sketches));
    largest = std::max(largest, change.norm() / left->norm());
  }
  return largest;
}

std::pair<double, double> shared_by_equals(const Observation& one) {
  return {one.count, one.absmax};
}

// Whose weights a tensor has: another rank's part of it, or another tensor's.
template <typename Owners>
std::string owner_text(const Window& window, const Observation& now, const Owners& owners) {
  if (now.is_constant()) return "";
  const Observation* owner = nullptr;
  const auto [begin, end] = owners.equal_range(shared_by_equals(now));
  for (auto at = begin; at != end; ++at) {
    const Observation& left = *at->second;
    if (left.dtype != now.dtype) continue;
    if (left.tensor == now.tensor ? left.part == now.part && left.rank == now.rank
                                  : left.rank != now.rank) {
      continue;
    }
    // Fingerprints are of the place in the tensor, too.
    if (are_alike(left, now)) owner = &left;
    if (owner != nullptr && owner->tensor == now.tensor) break;
  }
  if (owner == nullptr) return "";
  const std::string name = tensor_text(window.tensors[now.tensor]);
  if (owner->tensor != now.tensor) {
    return name + " has those of " + tensor_text(window.tensors[owner->tensor]);
  }
  return name + " has those that rank " + std::to_string(owner->rank) + " left";
}

}  // namespace

void ResumedWeights::note(const StepEvidence& step) {
  if (hashes_.empty()) {
    for (const auto& [rank, hash] : hashes_of(step, Quantity::weight_before)) {
      hashes_[rank] = {step.step, hash, {}};
    }
  }
  const std::size_t most = std::min(kSteps, kStepsOfAll / std::max<std::size_t>(1, hashes_.size()));
  for (const auto& [rank, hash] : hashes_of(step, Quantity::weight_after)) {
    auto& left = hashes_[rank].left;
    left.emplace_back(step.step, hash);
    if (left.size() > most) left.pop_front();
  }
}

void ResumedWeights::begin(const StepEvidence& left, const Held& held, const Gaps& gaps) {
  Earlier earlier{.restart = left.restart, .step = left.step, .left = {}};
  for (const Observation& one : left.all()) {
    if (one.quantity != Quantity::weight_after || one.forward_changes) continue;
    const bool stays = held.has_held(Check::gap, one.rank, Held::place(Check::gap, one)) &&
                       !gaps.has_reason(one.rank, one.tensor);
    if (stays) earlier.left.push_back(one);
  }
  earlier_ = std::move(earlier);
}

void ResumedWeights::check(const Window& window, Findings& found) {
  if (!earlier_) return;
  std::map<std::int32_t, Apart> ranks = apart(window, found);
  check_dtypes(window, found);
  std::erase_if(ranks, [](const auto& rank) { return rank.second.weights.empty(); });
  if (!ranks.empty()) report(window, ranks, found);
  earlier_.reset();
}

void ResumedWeights::check_dtypes(const Window& window, Findings& found) const {
  for (const Observation& left : earlier_->left) {
    const Observation* const now = window.now.find(left.tensor, Quantity::weight_before, left.rank);
    if (now == nullptr || now->dtype == left.dtype) continue;
    Finding one = window.finding(Check::config, Stage::start, left.rank, {left.tensor});
    one.certain = false;
    one.text = "this start goes on with weights in " + std::string(dtype_name(now->dtype)) +
               ", which were in " + std::string(dtype_name(left.dtype)) + " behind step " +
               std::to_string(earlier_->step);
    found.add(std::move(one));
  }
}

void ResumedWeights::report(const Window& window, const std::map<std::int32_t, Apart>& ranks,
                            Findings& found) const {
  auto hashes = hashes_of(window.now, Quantity::weight_before);
  Owners owners;
  for (const Observation& one : earlier_->left) owners.emplace(shared_by_equals(one), &one);
  for (const auto& [rank, all] : ranks) {
    Finding one = window.finding(Check::gap, Stage::start, rank);
    std::vector<const Observation*> rows;
    for (const auto& [left, now] : all.weights) {
      one.tensors.push_back(now->tensor);
      rows.insert(rows.end(), {left, now});
    }
    one.evidence = evidence_of_bits(rows);
    one.certain = false;
    one.text = "this start goes on behind step " + std::to_string(earlier_->step) + ", but " +
               (all.weights.size() == all.compared
                    ? "its weights are not those"
                    : std::to_string(all.weights.size()) + " of its " +
                          std::to_string(all.compared) + " weights are not those") +
               " that restart " + std::to_string(earlier_->restart) + " left there" +
               source(window, rank, hashes[rank], all, owners);
    found.add(std::move(one));
  }
}

std::map<std::int32_t, ResumedWeights::Apart> ResumedWeights::apart(const Window& window,
                                                                    Findings& found) const {
  std::map<std::int32_t, Apart> ranks;
  for (const Observation& left : earlier_->left) {
    const Observation* const now = window.now.find(left.tensor, Quantity::weight_before, left.rank);
    const bool is_same_part = now != nullptr && left.count == now->count &&
                              left.part == now->part && left.dtype == now->dtype;
    if (!is_same_part || !are_comparable(left, *now)) continue;
    found.checked(Check::gap, evidence_of_bits({&left, now}));
    Apart& all = ranks[left.rank];
    ++all.compared;
    if (!are_equal(left, *now)) all.weights.emplace_back(&left, now);
  }
  return ranks;
}

std::string ResumedWeights::source(const Window& window, std::int32_t rank, std::uint64_t hash,
                                   const Apart& all, const Owners& owners) const {
  if (const auto known = hashes_.find(rank); known != hashes_.end()) {
    const Hashes& of_rank = known->second;
    const auto step = std::ranges::find(of_rank.left, hash, &HashOfStep::second);
    if (step != of_rank.left.end()) {
      return "; they are those that step " + std::to_string(step->first) + " left";
    }
    if (of_rank.first == hash) {
      return "; they are those with which step " + std::to_string(of_rank.first_step) +
             " began, as where the weights were not loaded";
    }
  }
  std::size_t tried = 0;
  for (const auto& [left, now] : all.weights) {
    if (tried++ == kNamedOwners) break;
    const std::string owner = owner_text(window, *now, owners);
    if (!owner.empty()) return "; " + owner;
  }
  const std::optional<double> share = largest_share(all.weights);
  if (!share) return "";
  return "; they are off by " + number_text(100.0 * *share, 2) + " % of their norm at most";
}

}  // namespace trainmon::detect
