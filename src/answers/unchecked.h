// Why a diagnosis did not look at something.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "answers/steps_in_order.h"
#include "detect/checks.h"
#include "trainmon/read.h"

namespace trainmon {

// Why a check was never made; the kinds that it needs are in docs/detection.md.
std::string reason_unchecked(detect::Check check, const RunRows& run, const StepsInOrder& steps);
// Why elements were compared by statistics, of all tensors or of some; empty where they were not.
std::string why_by_statistics(const StepsInOrder& steps,
                              const std::vector<detect::Tensor>& tensors);
// What ranks said that they do not record -> why.
std::map<std::string, std::string> not_covered(const std::filesystem::path& run,
                                               const ReadOptions& options);
// Where somebody said that weights are edited: no check goes across. Empty without any.
std::string edits_text(const RunRows& run);

}  // namespace trainmon
