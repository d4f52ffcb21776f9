// Where ranks hold shards, the gradients of micro steps may be reduced one by one, or all at once.
// FSDP does either, and rows do not say which. The last row then is that of its micro step alone,
// or has what those before it have. What most tensors obey tells it, and each tensor keeps to it.
#include <algorithm>
#include <map>
#include <utility>

#include "detect/reduction.h"

namespace trainmon::detect {
namespace {

struct Explanation {
  std::vector<Scale> scales;
  std::ptrdiff_t tensors = 0;  // that these explain

  bool explains(const Window& window, const Reduction& one) const {
    const Observation* const reduced = one.reduced(window, window.ranks.front());
    return reduced != nullptr && nearest_of(*reduced, one, scales).is_within();
  }
};

Explanation explanation_of(const Window& window, const std::vector<Reduction>& all) {
  const std::vector<ScaledTensor> scaled = scaled_of(window, all, window.ranks.front());
  Explanation found{scales_of(scaled)};
  const Scale common = common_scale(scaled);
  if (common.factor > 1.0) found.scales.push_back(common);
  found.tensors = std::ranges::count_if(
      scaled, [&](const ScaledTensor& one) { return found.explains(window, *one.mean); });
  return found;
}

// Whether every rank has all its rows of a tensor, so far as is known.
bool are_whole(const Window& window, std::uint32_t tensor) {
  const auto rows = window.now.earlier(tensor);
  std::map<std::int32_t, std::size_t> of_ranks;
  for (const Observation& one : rows) {
    if (!one.is_finite) return false;
    ++of_ranks[one.rank];
  }
  return window.lossy.empty() && std::ranges::all_of(window.ranks, [&](std::int32_t rank) {
           return of_ranks[rank] * window.ranks.size() == rows.size();
         });
}

}  // namespace

void settle_micro_steps(const Window& window, std::vector<Reduction>& all,
                        ReducedMicroSteps& known) {
  const auto has_earlier = [&](const Reduction& one) {
    return one.gathered && !window.now.earlier(one.tensor).empty();
  };
  if (std::ranges::none_of(all, has_earlier)) return;
  std::vector<Reduction> added = all;
  for (Reduction& one : added) {
    if (!has_earlier(one) || !are_whole(window, one.tensor)) continue;
    one.adds_up = true;
    take_mean(window, one);
  }
  const Explanation by_last = explanation_of(window, all), by_sum = explanation_of(window, added);
  const auto most = static_cast<std::size_t>(std::max(by_last.tensors, by_sum.tensors));
  const bool is_told = 2 * most > all.size();
  const bool adds_up = by_sum.tensors > by_last.tensors;
  const Explanation& best = adds_up ? by_sum : by_last;
  std::vector<Reduction> settled;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!has_earlier(all[i])) {
      settled.push_back(std::move(all[i]));
      continue;
    }
    const std::size_t rows = window.now.earlier(all[i].tensor).size();
    const bool by_one = is_told && best.explains(window, all[i]);
    const bool by_all = is_told && added[i].adds_up && best.explains(window, added[i]);
    if (by_one != by_all) known[all[i].tensor] = {rows, by_all};
    const auto way = known.find(all[i].tensor);
    const bool is_known = way != known.end() && way->second.rows == rows;
    if (by_one || by_all) {
      settled.push_back(std::move(by_all && (adds_up || !by_one) ? added[i] : all[i]));
    } else if (is_known && way->second.adds_up == added[i].adds_up) {
      settled.push_back(std::move(added[i]));
    } else if (is_known && !way->second.adds_up) {
      settled.push_back(std::move(all[i]));
    }
  }
  all = std::move(settled);
}

}  // namespace trainmon::detect
