// The numbers of wanted series, -1 for others: asked for each row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "read/segment_index.h"
#include "trainmon/record.h"

namespace trainmon {

class SeriesNumbers {
 public:
  explicit SeriesNumbers(const std::map<SeriesId, std::uint32_t>& wanted) : wanted_(wanted) {
    for (const auto& [id, number] : wanted) {
      if (id >= kFewSeries) break;
      if (id >= few_.size()) few_.resize(id + 1, -1);
      few_[id] = number;
    }
  }
  std::int64_t operator()(SeriesId id) const {
    if (id < few_.size()) return few_[id];
    const auto found = wanted_.find(id);
    return found == wanted_.end() ? -1 : std::int64_t{found->second};
  }

 private:
  const std::map<SeriesId, std::uint32_t>& wanted_;
  std::vector<std::int64_t> few_;
};

}  // namespace trainmon
