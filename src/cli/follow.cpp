#include "cli/follow.h"

#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <iostream>
#include <system_error>

#include "base/text.h"
#include "read/run_layout.h"

namespace trainmon::cli {
namespace {

volatile std::sig_atomic_t is_interrupted = 0;

// Not there yet, or without a start in it. Somebody who gave a directory of runs, or one that may
// not be read, meant another one.
bool may_start(const std::filesystem::path& run) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(run, error);
  if (!std::filesystem::exists(status))
    return status.type() == std::filesystem::file_type::not_found;
  const bool is_readable = ::access(run.c_str(), R_OK | X_OK) == 0;
  return std::filesystem::is_directory(status) && is_readable && !is_run(run) &&
         runs_in(run).empty();
}

}  // namespace

void end_on_interrupt() {
  struct sigaction action = {};
  action.sa_handler = [](int) { is_interrupted = 1; };  // no SA_RESTART: waiting ends
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

bool wait_to_look(double seconds) {
  pollfd out{1, 0, 0};
  ::poll(&out, 1, static_cast<int>(seconds * 1000));
  return is_interrupted == 0 && (out.revents & (POLLERR | POLLNVAL)) == 0;
}

bool wait_for_start(const std::filesystem::path& run, double interval, Context& context) {
  end_on_interrupt();
  if (may_start(run) && !context.quiet) {
    std::cerr << "no run in " << printable(run.native())
              << " yet; waiting for its first start, Ctrl-C ends\n";
  }
  while (may_start(run)) {
    if (wait_to_look(interval)) continue;
    context.exit_code = kPartial;
    return false;
  }
  rank_directories(run);
  return true;
}

}  // namespace trainmon::cli
