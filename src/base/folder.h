// What is in a directory, for code that must outlive a want of memory.
#pragma once

#include <filesystem>
#include <vector>

namespace trainmon {

// The paths of all entries of a directory, in no order; none where it cannot be read. Throws
// std::bad_alloc alone, where an iterator of libstdc++ ends the process.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& directory);

}  // namespace trainmon
