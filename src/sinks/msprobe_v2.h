// The files of msprobe's Monitor V2: one per monitor, whose rows are of several kinds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sinks/msprobe.h"
#include "sinks/msprobe_csv.h"

namespace trainmon::msprobe_csv {

// What the rows of a step are in the files of these monitors; none for a monitor without rows.
std::vector<StepFile> v2_files(std::span<const Row> rows, std::int64_t step,
                               const SeriesTable& table, const MsprobeOptions& options, int rank);

}  // namespace trainmon::msprobe_csv
