#include "cli/follow.h"

#include <poll.h>

#include <csignal>

namespace trainmon::cli {
namespace {

volatile std::sig_atomic_t is_interrupted = 0;

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

}  // namespace trainmon::cli
