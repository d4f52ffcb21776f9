// What a dump of gradient directions has: ranks, steps, parameters, by the names of directories and
// files alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
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
// Where the directions of a parameter are.
struct DirectionName {
  bool is_packed = false;  // .sign, else .npy
  bool is_file = false;    // false: a directory, a pipe, a link to nothing
  bool has_both = false;   // of two files the newer is meant: one was left by an earlier run
};
// By file name without its ending, which is file_name_of() the parameter.
std::map<std::string, DirectionName> find_parameters(const std::filesystem::path& step);
// The parameters whose gradient had a NaN at that step, by file name: their norm in the summary
// says so. Empty where there is no summary that can be read.
std::set<std::string> find_nans(const std::filesystem::path& rank, std::int64_t step);

// `names` in the order of the grad_summary_{step}.csv of these directories, read as far as they
// bring anything new; then those that no summary has. A file that cannot be read is passed over.
std::vector<std::string> in_summary_order(const std::vector<std::filesystem::path>& ranks,
                                          std::vector<std::string> names);

}  // namespace trainmon
