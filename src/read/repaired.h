// What `trainmon repair` has said of a rank and restart that it wrote.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "read/run_layout.h"

namespace trainmon {

inline constexpr const char* kRepairFile = "repair.json";

// Which of the ranks that are taken were repaired and what they lost; a sentence, or none.
std::vector<std::string> repair_sentences(const std::vector<RankDirectory>& directories,
                                          const std::function<bool(int)>& takes_rank);

}  // namespace trainmon
