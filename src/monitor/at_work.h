// The monitors that this process has at work.
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <vector>

#include "monitor/state.h"

namespace trainmon {

// Any thread.
class Monitor::AtWork {
 public:
  // Never destroyed: monitors may outlive everything static.
  static AtWork& all();
  void add(const std::shared_ptr<State>& state);
  // Those whose directory lies in `path`, or the other way round.
  std::vector<std::shared_ptr<State>> of(const std::filesystem::path& path);

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<State>> states_;
};

}  // namespace trainmon
