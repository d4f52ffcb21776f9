// What commands share that follow a run which goes on.
#pragma once

#include <filesystem>

#include "cli/commands.h"

namespace trainmon::cli {

// Ctrl-C and SIGTERM end the waiting instead of the program.
void end_on_interrupt();
// Waits so many seconds; false, and at once, when nobody reads stdout any more or the person wants
// no more.
bool wait_to_look(double seconds);
// Waits until a rank has started in `run`, and says once that it waits. False when nobody wants to
// wait any more: the exit code is kPartial then. Throws as rank_directories() where no start can be
// waited for: `run` is no directory, cannot be read, or holds runs instead of being one.
bool wait_for_start(const std::filesystem::path& run, double interval, Context& context);

}  // namespace trainmon::cli
