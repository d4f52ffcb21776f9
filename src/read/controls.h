// What each rank of a run says of the control that it follows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trainmon {

// What one rank says of it in the run.json of its newest restart.
struct RankControl {
  int rank = 0;
  int restart = 0;
  bool closed = false;      // monitoring was stopped in order
  std::string config_json;  // what the run began with; "" when it cannot be read
  std::int64_t number = 0;  // of the change it follows; 0: none
  bool on = true;
  std::int64_t since_step = -1;         // first step of that change; -1: none
  std::optional<std::int64_t> waiting;  // number of a change whose step has not come
  std::optional<std::int64_t> refused;  // number of the newest change that it could not follow,
  std::string why;                      // and why
  std::string file_fault;               // what is wrong with the file as it was read last
};
// By rank. Throws std::runtime_error when `run` is no run, as read_run() does.
std::vector<RankControl> read_controls(const std::filesystem::path& run);

}  // namespace trainmon
