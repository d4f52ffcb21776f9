#include "answers/line_changes.h"

namespace trainmon {

void LineChanges::add(const LineValue& value) {
  stopped_.add(value);
  dtypes_.add(value);
  sums_.add(value);
}

void LineChanges::add_found(std::vector<LineShift>& to) const {
  for (const auto& found : {stopped_.found(), dtypes_.found(), sums_.found()}) {
    to.insert(to.end(), found.begin(), found.end());
  }
}

void LineChanges::forget() {
  stopped_.forget();
  dtypes_.forget();
  sums_.forget();
}

}  // namespace trainmon
