// Merging rows over ranks.
#pragma once

#include "trainmon/read.h"

namespace trainmon {

// Replaces the rows of `rows` as read_run() says; series of merged wholes are added.
void merge_ranks(RunRows& rows);

// Rows that lack elements of their tensor.
std::int64_t partial_rows(const RunRows& rows);

}  // namespace trainmon
