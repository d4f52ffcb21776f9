// Whoever waits until what was handed over is in the files.
#include <algorithm>
#include <chrono>

#include "monitor/assembly.h"
#include "monitor/state.h"
#include "trainmon/monitor.h"

namespace trainmon {

bool Monitor::State::settle(std::chrono::nanoseconds timeout) {
  attempt("seal", [&] {
    collector.collect_replays();
    collector.seal(Moment::interval);
  });
  return pipe->settle(timeout);
}

bool Monitor::State::flush(std::chrono::nanoseconds timeout, const std::function<bool()>& goes_on) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  // A full queue would hold the seal up for longer than was asked for.
  if (config.overflow == Overflow::block && !pipe->settle(timeout, goes_on)) return false;
  if (!stopped) {
    attempt("seal", [&] {
      collector.collect_replays();
      collector.seal(Moment::interval);
    });
  }
  return pipe->flush(deadline - std::chrono::steady_clock::now(), goes_on);
}

bool Monitor::settle(double timeout) {
  if (!state_->alive()) return false;
  return state_->settle(seconds(timeout));
}

bool Monitor::flush(double timeout, const std::function<bool()>& goes_on) {
  if (state_->forked()) return false;
  constexpr double kLongest = 1e9;
  const double wait = timeout > 0.0 ? std::min(timeout, kLongest) : 0.0;  // a NaN: 0
  bool is_done = false;
  state_->attempt("flush", [&] { is_done = state_->flush(seconds(wait), goes_on); });
  return is_done;
}

}  // namespace trainmon
