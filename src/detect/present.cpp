// A row that one step has and the next has not tells of a missing gradient or parameter. The
// gradient is None, or the optimizer does not hold the parameter any more. Ranks from which rows
// were lost are left out.
#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>

#include "detect/checks.h"

namespace trainmon::detect {
namespace {

constexpr std::array kStates = {Quantity::exp_avg, Quantity::momentum_buffer};

// What a rank has of one step.
using Measured = std::set<std::pair<std::int32_t, Quantity>>;

void report(const Window& window, const Observation& missing, bool certain, std::string text,
            Findings& found) {
  Finding finding =
      window.finding(Check::present, stage_of(missing.quantity), missing.rank, {missing.tensor});
  finding.certain = certain;
  finding.text = std::string(quantity_name(missing.quantity)) + std::move(text);
  found.add(std::move(finding));
}

bool is_of_another_rank(const Window& window, const Observation& one) {
  for (const Observation* other : window.now.of(one.tensor, one.quantity)) {
    if (other->is_replicated) return true;
  }
  return false;
}

}  // namespace

void check_present(const Window& window, Findings& found) {
  if (window.before == nullptr) return;
  Measured measured;
  for (const Observation& one : window.now.all()) measured.insert({one.rank, one.quantity});
  for (const Observation& one : window.before->all()) {
    // A rank that has nothing of the quantity did not record it in this step.
    if (window.lossy.contains(one.rank) || !measured.contains({one.rank, one.quantity})) continue;
    const bool is_state = std::ranges::find(kStates, one.quantity) != kStates.end();
    if (!one.is_replicated && !is_state) continue;
    found.checked(Check::present);
    if (window.now.find(one.tensor, one.quantity, one.rank) != nullptr) continue;
    if (one.is_replicated && is_of_another_rank(window, one)) {
      report(window, one, true, " is missing, and other ranks have it", found);
    } else if (is_state && window.now.find(one.tensor, Quantity::grad_reduced, one.rank)) {
      report(window, one, false, " ends here, though gradients go on", found);
    }
  }
}

}  // namespace trainmon::detect
