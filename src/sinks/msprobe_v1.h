// The files of msprobe's TrainerMon: one per prefix, with the statistics asked for as columns.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sinks/msprobe.h"
#include "sinks/msprobe_csv.h"

namespace trainmon::msprobe_csv {

// What the rows of a step are in these files, in the order of writing.
std::vector<StepFile> v1_files(std::span<const Row> rows, std::int64_t step,
                               const SeriesTable& table, const MsprobeOptions& options,
                               const std::vector<Stat>& ops);

}  // namespace trainmon::msprobe_csv
