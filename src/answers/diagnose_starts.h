// Each start of a run diagnosed by itself.
#pragma once

#include <vector>

#include "answers/diagnose.h"
#include "read/open_logs.h"
#include "trainmon/read.h"

namespace trainmon {

// As diagnose() with options.all_restarts. What turns out not to be usable while rows are read is
// added to `damage`. Throws as read_run().
Diagnosis diagnose_starts(const OpenedRun& run, const ReadOptions& options,
                          std::vector<Damage>& damage);
// Of the rows that `options` select, as one record; likewise.
Diagnosis diagnose_record(const OpenedRun& run, const ReadOptions& options,
                          std::vector<Damage>& damage);

}  // namespace trainmon
