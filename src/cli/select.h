// The options by which a subcommand chooses rows.
#pragma once

#include <string>
#include <vector>

#include "cli/commands.h"
#include "trainmon/read.h"

namespace trainmon::cli {

struct Selection {
  std::string run;
  std::vector<std::string> kinds;
  std::vector<std::string> names;
  std::vector<std::string> excludes;
  std::vector<int> ranks;
  std::string steps;  // "A:B", "A:", ":B" or "A"
  bool all_restarts = false;
  bool merged = false;
  unsigned threads = 0;
};

void add_selection(CLI::App& command, Selection& selection);
void add_threads(CLI::App& command, unsigned& threads);

// Throws std::invalid_argument for wrong steps.
ReadOptions read_options(const Selection& selection);

// Reads the rows; what could not be used and which ranks are missing is said on stderr and sets
// kPartial. Throws what read_run throws, and std::invalid_argument for wrong steps.
RunRows read_selected(const Selection& selection, Context& context);
// Says how many merged rows lack elements.
void say_partial(std::int64_t count);
// Says where one damaged place is.
void say_not_used(const Damage& damage);
// Says what restarts before the newest found.
void say_earlier(const std::vector<std::string>& sentences);
// Says why the record is not complete, which sets kPartial.
void say_incomplete(const std::vector<std::string>& sentences, Context& context);
// Says the same of a run whose rows, this many, were looked at and not kept.
void say_of_run(const RunRows& run, std::int64_t rows, const ReadOptions& options,
                Context& context);

// For --stat: throws std::invalid_argument naming the valid ones and the nearest.
Stat checked_stat(const std::string& name);

}  // namespace trainmon::cli
