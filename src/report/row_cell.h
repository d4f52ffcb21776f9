// The cell of one value.
#pragma once

#include "report/cell_table.h"
#include "trainmon/read.h"

namespace trainmon::page {

// Of the norm of a row, with what else the page tells of its elements. One that a device never gave
// has no value and the mark of dropped rows.
Cell cell_of(const ReadRow& row);
// Of a number that is no statistic.
Cell cell_of(double value);

}  // namespace trainmon::page
