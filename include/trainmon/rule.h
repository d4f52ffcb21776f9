// Alert rules: look at every batch on the writer thread before the sinks do.
#pragma once

#include <string_view>
#include <vector>

#include "trainmon/record.h"

namespace trainmon {

class Rule {
 public:
  virtual ~Rule() = default;
  virtual std::string_view name() const = 0;
  // Appends what this batch gives rise to. Called with complete rows only, from one thread.
  virtual void look(const RecordBatch& batch, const SeriesTable& series,
                    std::vector<Alert>& alerts) = 0;
};

}  // namespace trainmon
