// The rows of a run that are estimates, with their errors and what the samples hold.
#pragma once

#include <span>
#include <vector>

#include "read/run_stream.h"

namespace trainmon {

struct SampledRow {
  ReadRow row;
  RowSample sample;
};

// Those of the rows that the stream selects, by restart, step, attempt, rank, seq. A row whose
// sample was dropped (a full queue) is not among them. All are in memory. Damage as read() of the
// stream adds it.
std::vector<SampledRow> read_samples(const RunStream& stream, unsigned threads,
                                     std::vector<Damage>& damage);

}  // namespace trainmon
