// One number for equal series of different ranks.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "trainmon/record.h"

namespace trainmon {

class SeriesIndex {
 public:
  // The number of this series, new or known.
  std::uint32_t add(const Series& series);
  const Series& at(std::uint32_t number) const { return list_[number]; }
  // All series by number; the index is empty afterwards.
  std::vector<Series> take();

 private:
  std::vector<Series> list_;
  std::multimap<std::string, std::uint32_t> by_name_;
};

}  // namespace trainmon
