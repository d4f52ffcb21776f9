// What commands share that follow a run which goes on.
#pragma once

namespace trainmon::cli {

// Ctrl-C and SIGTERM end the waiting instead of the program.
void end_on_interrupt();
// Waits so many seconds; false, and at once, when nobody reads stdout any more or the person wants
// no more.
bool wait_to_look(double seconds);

}  // namespace trainmon::cli
