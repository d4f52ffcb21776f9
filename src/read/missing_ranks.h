// Which ranks were to record and have left nothing.
#pragma once

#include <set>
#include <vector>

#include "read/run_layout.h"
#include "trainmon/read.h"

namespace trainmon {

class ExpectedRanks {
 public:
  // Whoever was started together with the one whose run.json this is, and records.
  void add(const RunFacts& facts);
  // Those of them that have no directory, whatever the restart.
  MissingRanks missing(const std::vector<RankDirectory>& directories) const;

 private:
  int world_size_ = 0;
  int all_below_ = 0;    // every rank below is expected
  std::set<int> named_;  // and these
};

}  // namespace trainmon
