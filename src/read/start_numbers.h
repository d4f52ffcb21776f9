// Which restarts of different ranks are one start of the run.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "read/run_layout.h"

namespace trainmon {

struct RankStart {
  int rank = 0;
  int restart = 0;
  double begin = 0.0;  // seconds since 1970; 0: unknown
  double end = 0.0;    // its last sign of life
};

// By rank and restart; others have their own number.
using StartNumbers = std::map<std::pair<int, int>, int>;
int start_number(const StartNumbers& numbers, int rank, int restart);

// By rank and restart, the number that other ranks have for the same start, where that is another.
// It is so from a start on in which a process ended before it began to record. The rank that has
// most restarts gives the numbers. Another rank's restart is of those that it ran beside, or that
// ended a minute before it began or began a minute after it ended.
StartNumbers start_numbers(std::vector<RankStart> starts);
// The same of folders, by their run.json and health.json.
StartNumbers start_numbers(const std::vector<RankDirectory>& directories);

}  // namespace trainmon
