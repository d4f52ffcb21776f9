// The two CSV files of ColossalAIMonitor, for the compatible face: a sink that all ranks share.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "trainmon/sink.h"
#include "trainmon/stat.h"

namespace trainmon {

struct GradStatsOptions {
  // Columns after step, rank and param_name, in this order.
  std::vector<Stat> stats = {Stat::norm, Stat::mean, Stat::max, Stat::min};
  std::filesystem::path local;      // rows of grad_micro: what each backward of this rank gave
  std::filesystem::path global;     // rows of grad_reduced: what the optimizer saw
  std::int64_t write_interval = 1;  // steps between writes; a flush writes in between
};

// All ranks append to the same two files, each under the file's lock, whole lines at a time. The
// first rank that comes writes the header; lines end with CRLF. A step's rows of one rank are in
// both files or in neither. A kill between two writes loses the rows since the last one. A line
// that a kill tore is cut off by the next writer. Rows of other kinds have no place.
//
// Makes both files at once. Throws SinkError where that fails, with reason "other_columns" for a
// file that is there and begins with another line.
std::unique_ptr<Sink> make_grad_stats_sink(const GradStatsOptions& options);

}  // namespace trainmon
