// What a dump of gradient directions has: ranks, steps, parameters, by the names of directories and
// files alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace trainmon {

// Directories by their number: rank0, rank1, ... or step0, ... ("rank_0", as the manual's text has
// it, counts too where there is no rank0).
using Numbered = std::map<std::int64_t, std::filesystem::path>;

struct DirectionDump {
  std::filesystem::path path;
  bool has_ranks = false;
  Numbered ranks;  // without ranks the dump itself as 0, where it has steps or summaries
};
// Throws std::runtime_error where there is no directory, std::filesystem::filesystem_error where it
// cannot be read; so do the others.
DirectionDump find_directions(const std::filesystem::path& path);

Numbered find_steps(const std::filesystem::path& rank);
// The file name of each parameter's directions, packed ones before others.
std::map<std::string, std::string> find_parameters(const std::filesystem::path& step);

// `names` in the order of the grad_summary_{step}.csv of these directories, read as far as they
// bring anything new; then those that no summary has. A file that cannot be read is passed over.
std::vector<std::string> in_summary_order(const std::vector<std::filesystem::path>& ranks,
                                          std::vector<std::string> names);

}  // namespace trainmon
