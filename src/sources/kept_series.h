// Series of records that name them anew each time, once each and at an address that stays.
#pragma once

#include <deque>

#include "read/series_index.h"

namespace trainmon {

class KeptSeries {
 public:
  const Series& add(const Series& series) {
    const std::uint32_t number = index_.add(series);
    if (number == kept_.size()) kept_.push_back(series);
    return kept_[number];
  }

 private:
  SeriesIndex index_;
  std::deque<Series> kept_;
};

}  // namespace trainmon
