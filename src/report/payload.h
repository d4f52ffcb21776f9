// The columns of a page as bytes: a description in JSON, then numbers. docs/report.md has the
// layout.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/gather.h"

namespace trainmon::page {

// How unusual a line is in its own history. NaN where there is none to compare with.
struct Unusual {
  double score = 0.0;
  std::int64_t bin = 0;  // where it is most so
};
// The largest distance of log10 of a value from the median of the up to 16 values before it, at
// least 8, in units of 1.4826 times their median absolute deviation, of 0.01 at the least. What is
// not above 0 counts as a tenth of the least positive value of the line. Infinite where a NaN or an
// infinity is: the first such place.
Unusual unusual(const Line& line);

// About how many bytes the numbers of rows take when they are packed, from one of so many lines.
std::int64_t sampled_bytes(const CellTable& table, std::size_t one_of);

// u32 length of the JSON, little endian; the JSON; the columns.
std::string payload(const Gathered& gathered);

}  // namespace trainmon::page
