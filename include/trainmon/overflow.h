// What a full queue of batches does.
#pragma once

#include <cstdint>

namespace trainmon {

// drop_newest, drop_oldest: rows are lost and counted. block: training waits for the writer.
enum class Overflow : std::uint8_t { drop_newest, drop_oldest, block };

}  // namespace trainmon
