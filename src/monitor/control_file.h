// Follows RUN/control.json: whole versions only, each one once, whatever is done to the file.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "trainmon/control.h"

namespace trainmon {

class ControlFile {
 public:
  struct Found {
    std::optional<ControlChange> change;  // a valid version other than the last valid one
    std::string fault;                    // why it is not followed; "" when nothing is wrong
  };

  // `config` is what the run began with: a version that does not go with it is a fault.
  ControlFile(std::filesystem::path path, const Config& config);

  // What is new since the last call; nullopt for nothing. A missing file changes nothing. Costs one
  // stat() while the file stays as it is. Throws std::bad_alloc at most.
  using Clock = std::chrono::steady_clock;
  std::optional<Found> look(Clock::time_point now = Clock::now());

 private:
  struct Stamp {
    ino_t inode = 0;
    off_t size = -1;
    std::int64_t seconds = 0;
    std::int64_t nanoseconds = 0;
    bool operator==(const Stamp&) const = default;
  };
  std::optional<std::string> read(Clock::time_point now, std::string& unreadable);

  const std::filesystem::path path_;
  const Config config_;
  Stamp stamp_;
  Clock::time_point again_until_{};  // read till then although the stamp is the same
  bool is_fine_ = true;
  std::string seen_;  // what was read last,
  std::string good_;  // and the last valid version as we write it
};

}  // namespace trainmon
