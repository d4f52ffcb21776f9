// Merging rows over ranks.
#pragma once

#include "trainmon/tools.h"

namespace trainmon {

// Replaces the rows of `rows` as read_run() says; series of merged wholes are added.
void merge_ranks(RunRows& rows);

}  // namespace trainmon
