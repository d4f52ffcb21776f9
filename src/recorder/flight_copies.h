// Copies of a rank's flight recorder, kept where something was found while it trained.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <vector>

namespace trainmon {

// At most so many copies of a rank are in a run, those of all its starts together. At most one is
// made a minute. So an alert storm costs a bounded room.
inline constexpr std::size_t kMostFlightCopies = 3;

class FlightCopies {
 public:
  // `file` lies in RUN/rank_00003/restart_0001; none is kept of one that lies elsewhere.
  explicit FlightCopies(std::filesystem::path file);

  // Copies the file to RUN/frozen_at_step_12/rank_00003/restart_0001, where other ranks that found
  // something at that step put theirs, unless there are enough. A reader sees the whole copy or
  // none. Throws SinkError: "no_space" too where less than ten times the file's size would be left
  // on the disk. The writer thread.
  void keep(std::int64_t step);
  // The folders RUN/frozen_at_step_12 that this start has made. Any thread.
  std::vector<std::filesystem::path> folders() const;

 private:
  const std::filesystem::path file_;
  std::chrono::steady_clock::time_point next_;
  mutable std::mutex mutex_;
  std::vector<std::filesystem::path> folders_;
};

}  // namespace trainmon
