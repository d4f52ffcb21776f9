// The columns of a page as bytes: a description in JSON, then numbers. docs/report.md has the
// layout.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/gather.h"

namespace trainmon::page {

// About how many bytes the numbers of rows take when they are packed, from one of so many lines.
std::int64_t sampled_bytes(const CellTable& table, std::size_t one_of);

// u32 length of the JSON, little endian; the JSON; the columns.
std::string payload(const Gathered& gathered);

}  // namespace trainmon::page
