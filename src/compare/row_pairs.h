// Which row of one run belongs to which of another.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "compare/compared_run.h"

namespace trainmon {

struct RowPair {
  const ComparedRow* a = nullptr;
  const ComparedRow* b = nullptr;

  // -1 where both are merged.
  std::int32_t rank() const { return b->rank < 0 ? a->rank : b->rank; }
};

// Pairs in A's order of execution: step, attempt, then as a fault passes through a step
// (model/first_bad.h), then the order on the rank. Rows of one place are matched rank by rank, the
// k-th of one rank with the k-th of the other; a row merged over ranks matches every rank the other
// run has there. Pointers are into the runs. Fills `unmatched` and `only_here` of both sides.
std::vector<RowPair> pair_rows(ComparedRun& a, ComparedRun& b);

}  // namespace trainmon
