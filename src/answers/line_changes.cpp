#include "answers/line_changes.h"

namespace trainmon {

void LineChanges::add(const LineValue& value) {
  stopped_.add(value);
  dtypes_.add(value);
  sums_.add(value);
}

void LineChanges::add_found(std::vector<LineShift>& to) const {
  for (const auto& [shift, series, has_ended] : stopped_.found()) {
    to.push_back({shift, series, has_ended ? Measure::rows : Measure::still, false});
  }
  for (const auto& [shift, series] : dtypes_.found()) {
    to.push_back({shift, series, Measure::dtype, false});
  }
  for (const auto& [shift, series] : sums_.found()) {
    to.push_back({shift, series, Measure::sum, false});
  }
}

void LineChanges::forget() {
  stopped_.forget();
  dtypes_.forget();
  sums_.forget();
}

}  // namespace trainmon
