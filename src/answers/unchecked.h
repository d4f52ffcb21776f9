// Why a diagnosis did not look at something.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "answers/steps_in_order.h"
#include "detect/window.h"
#include "read/run_layout.h"
#include "trainmon/read.h"

namespace trainmon {

// Why a check was never made; the kinds that it needs are in docs/detection.md.
// `has_checks`: that of Recording.
std::string reason_unchecked(detect::Check check, const RunRows& run, const StepsInOrder& steps,
                             bool has_checks);
// Why elements were compared by statistics, of all tensors or of some; empty where they were not.
std::string why_by_statistics(const StepsInOrder& steps, const std::vector<detect::Tensor>& tensors,
                              bool has_checks);
// What the newest start of each rank said of its recording.
struct Recording {
  bool has_checks = false;                              // checks=True, on any of them
  std::map<std::string, std::string> not_covered = {};  // what is not recorded -> why
  // Optimizers by rank whose formula the record names.
  std::vector<std::pair<int, int>> formulas = {};
  bool has_other_formula = false;  // some optimizer has one that the record does not name
  std::set<std::string> formula_names = {};
  std::set<std::int64_t> control_steps = {};  // from which on ranks follow a change
};
Recording recording_of(const std::vector<RankDirectory>& directories, const ReadOptions& options);
// Whether no optimizer has a state of which this check is, because of its class.
bool has_no_such_state(detect::Check check, const Recording& recording);
// The check that something of not_covered tells of: "update" of "update of Lion". Empty where it
// tells of what was not recorded.
std::string_view check_not_covered(std::string_view what);
// Where somebody said that weights are edited: no check goes across. Empty without any.
std::string edits_text(const RunRows& run);

}  // namespace trainmon
