// msprobe's CSV layout: DIRECTORY/{time}-rank{r}-{id}/{type}_{a}-{b}.csv.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "read/row_filter.h"
#include "sources/source.h"

namespace trainmon {

// msprobe's metrics in the order of their numbers; the first kTrendMetrics are those that its newer
// schema has.
inline constexpr std::array<std::string_view, 13> kMsprobeMetrics = {"actv",
                                                                     "actv_grad",
                                                                     "exp_avg",
                                                                     "exp_avg_sq",
                                                                     "grad_unreduced",
                                                                     "grad_reduced",
                                                                     "param_origin",
                                                                     "param_updated",
                                                                     "other",
                                                                     "attention_hook",
                                                                     "linear_hook",
                                                                     "moe_router_weight_hook",
                                                                     "moe_router_logit_hook"};
inline constexpr std::size_t kTrendMetrics = 9;

struct MsprobeFile {
  std::filesystem::path path;
  std::int64_t first = 0;  // steps of its name, closed
  std::int64_t last = 0;
  std::int64_t bytes = 0;
  std::size_t directory = 0;  // in order of time: a later one supersedes
};

// The files of one type and rank, by steps, then by directory.
struct MsprobePart {
  int rank = 0;
  std::string type;
  std::vector<MsprobeFile> files;
  bool several_directories = false;
};
struct MsprobeFiles {
  std::vector<MsprobePart> parts;            // of the ranks, types and times asked for
  std::set<std::string, std::less<>> types;  // that are there, asked for or not
};
// Throws std::invalid_argument for times that are none,
// std::runtime_error where there are no files.
MsprobeFiles find_msprobe_files(const SourceOptions& options, const RowFilter& filter);

// What the columns of one file are.
struct MsprobeColumns {
  int chunk = -1, name = -1, step = -1, micro = -1, dtype = -1, shape = -1;
  std::vector<std::pair<int, std::string>> stats;  // column, name
  std::size_t count = 0;
  std::string fault;  // set: the file cannot be used
};
// From the fields of its first line.
MsprobeColumns msprobe_columns(const std::vector<std::string_view>& header);

}  // namespace trainmon
