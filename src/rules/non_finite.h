// The rule every run has: a NaN or an infinity anywhere is an alert.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "trainmon/rule.h"

namespace trainmon {

// One alert at the first non-finite row of a series. Repeats are told when their number has
// doubled, so a storm of N rows gives log2(N) alerts per series.
class NonFiniteRule final : public Rule {
 public:
  std::string_view name() const override { return "non_finite"; }
  void look(const RecordBatch& batch, const SeriesTable& series,
            std::vector<Alert>& alerts) override;

 private:
  struct Seen {
    RowKey first;
    std::int64_t count = 0;
  };
  std::unordered_map<SeriesId, Seen> seen_;
};

}  // namespace trainmon
