#include "monitor/at_work.h"

#include <algorithm>
#include <chrono>
#include <system_error>

namespace trainmon {

Monitor::AtWork& Monitor::AtWork::all() {
  static auto* all = new AtWork;
  return *all;
}

void Monitor::AtWork::add(const std::shared_ptr<State>& state) {
  const std::lock_guard lock(mutex_);
  std::erase_if(states_, [](const auto& known) { return known.expired(); });
  states_.push_back(state);
}

std::vector<std::shared_ptr<Monitor::State>> Monitor::AtWork::of(
    const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path wanted = fs::weakly_canonical(path, error);
  std::vector<std::shared_ptr<State>> found;
  // A forked child has none at work, and may have the lock for ever.
  if (forks() > 0 && !mutex_.try_lock()) return found;
  if (forks() == 0) mutex_.lock();
  const std::lock_guard lock(mutex_, std::adopt_lock);
  for (const auto& known : states_) {
    auto state = known.lock();
    if (state == nullptr || !state->alive()) continue;
    const fs::path own = fs::weakly_canonical(state->run.directory, error);
    const auto [a, b] = std::mismatch(own.begin(), own.end(), wanted.begin(), wanted.end());
    if (a == own.end() || b == wanted.end()) found.push_back(std::move(state));
  }
  return found;
}

void settle_monitors_of(const std::filesystem::path& path, double seconds) noexcept {
  using Clock = std::chrono::steady_clock;
  try {
    const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                             std::chrono::duration<double>(seconds));
    for (const auto& state : Monitor::AtWork::all().of(path)) {
      state->settle(std::max(deadline - Clock::now(), Clock::duration::zero()));
    }
  } catch (const std::exception&) {  // then what is in the files is read
  }
}

}  // namespace trainmon
