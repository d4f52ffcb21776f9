// Which folders are restarts of a rank: writers number by it, readers go by it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace trainmon {

inline constexpr int kMaxRestart = 999'999'999;

// "restart_0003", "restart_10000".
std::string restart_name(int number);

// The number of the restart whose folder this is; nullopt for what is called otherwise. A number of
// five digits and more counts only with a run.json in the folder: somebody's restart_20240101 is
// none.
std::optional<int> restart_number(const std::filesystem::path& folder);

}  // namespace trainmon
