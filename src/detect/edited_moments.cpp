#include "detect/edited_moments.h"

#include <map>
#include <vector>

#include "detect/moments.h"

namespace trainmon::detect {

void EditedMoments::check(const Window& window, Findings& found) {
  if (window.before == nullptr || window.edits.empty()) return;
  struct OfRank {
    std::vector<std::uint32_t> fresh;  // tensors
    std::size_t compared = 0;
  };
  std::map<std::int32_t, OfRank> ranks;
  for (const Observation& now : window.now.all()) {
    if (now.quantity != Quantity::exp_avg || !now.is_finite || now.is_before_step) continue;
    const Observation* const before = window.before->find(now.tensor, now.quantity, now.rank);
    const Observation* const gradient =
        window.now.find(now.tensor, Quantity::grad_reduced, now.rank);
    if (before == nullptr || gradient == nullptr || before->absmax == 0.0) continue;
    if (gradient->count != now.count || !window.has_edit(*before, now)) continue;
    const Observation* const weight =
        window.now.find(now.tensor, Quantity::weight_before, now.rank);
    const auto far = distance_of_moment(window, {&now, nullptr, gradient, weight});
    if (!far) continue;
    OfRank& rank = ranks[now.rank];
    ++rank.compared;
    if (far->is_within()) rank.fresh.push_back(now.tensor);
  }
  for (auto& [number, rank] : ranks) {
    if (2 * rank.fresh.size() <= rank.compared || !said_.insert(number).second) continue;
    Finding one = window.finding(Check::exp_avg, Stage::moments, number, std::move(rank.fresh));
    one.certain = false;
    one.text =
        "the moments begin at zero here, behind an edit of weights or state: as where the state of "
        "the optimizer was not loaded";
    found.add(std::move(one));
  }
}

}  // namespace trainmon::detect
