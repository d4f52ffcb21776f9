// The range of a number on each rank, over steps.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace trainmon::detect {

class RankRanges {
 public:
  void add(std::int32_t rank, double value);
  // Ranks whose range is apart from those of all others, ascending: by this factor.
  std::vector<std::int32_t> apart(double factor = 1.0) const;
  // "2 to 3 on rank 1, on others 5 to 6", of these ranks.
  std::string text(const std::vector<std::int32_t>& of) const;

 private:
  struct Range {
    double least = 0.0;
    double largest = 0.0;
  };
  std::map<std::int32_t, Range> ranks_;
};

}  // namespace trainmon::detect
