// What the log of one rank gives, as the books count it.
#pragma once

#include <cstdint>

#include "trainmon/tools.h"

namespace trainmon {

// Rows that were written and that the log itself says are gone.
std::int64_t rows_deleted(const LogContents& log);

}  // namespace trainmon
