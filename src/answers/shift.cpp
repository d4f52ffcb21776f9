#include "answers/shift.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace trainmon {

void ShiftSearch::add(const RowPlace& place, double number) {
  if (numbers_.has_ended()) return;
  if (stride_.is_behind_gap(place.step) && !found_) numbers_ = MeanShifts(rule_);
  std::move(last_.begin() + 1, last_.end(), last_.begin());
  last_.back() = place;
  last_.back().shape = nullptr;
  const auto found = numbers_.add(number);
  if (!found) return;
  const auto first = last_.end() - 1 - static_cast<std::ptrdiff_t>(found->ago);
  found_ = {unusual_of(found->before, std::identity(), *first, found->first),
            std::abs(found->apart), found->ago + 1, (first - 1)->restart != first->restart};
}

}  // namespace trainmon
