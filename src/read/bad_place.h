// Where a row that was read stands in the order of what went wrong first.
#pragma once

#include "model/first_bad.h"
#include "trainmon/read.h"

namespace trainmon {

BadPlace place_of(const RunRows& run, const ReadRow& row, const Series& series);
// Of one that is finite, whose loss scale tells nothing.
BadPlace place_of(const RunRows& run, const RowPlace& row, const Series& series);
// "step 5, rank 0, grad_reduced fc.weight".
std::string place_text(const ReadRow& row, const Series& series);

}  // namespace trainmon
