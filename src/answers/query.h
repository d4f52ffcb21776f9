// SQL over a run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "trainmon/read.h"

namespace trainmon {

// NULL, which NaN is, too; a number; text (or bytes).
using SqlValue = std::variant<std::monostate, std::int64_t, double, std::string>;

struct QueryOptions {
  bool all_restarts = false;     // also rows of steps that a later restart went through again
  double timeout_seconds = 0.0;  // a statement that takes longer is ended; 0: none is
  unsigned threads = 0;          // that read; 0: as many as the machine has, at most 8
};

// Where the answer goes: names of columns once, then row by row.
struct QueryOutput {
  std::function<void(const std::vector<std::string>&)> columns;
  std::function<void(const std::vector<SqlValue>&)> row;
};

// What the answer may lack.
struct QueryAccount {
  std::vector<Damage> damage;
  MissingRanks missing;
  std::vector<std::string> earlier;     // `expired` and `earlier` of RunRows
  std::vector<std::string> incomplete;  // as RunRows has it
};

// Carries out one SELECT, in SQLite's dialect, over the tables of a run or of one stats.db. The
// rows of a run are of its logs, or of its database where it has no log.
//   stats   the columns of trainmon.read(): key, then every statistic; also named rows
//   logged  restart, rank, step, name, value: what mon.log was given
//   alerts, gaps
// Rows are read when they are asked for; conditions on rank, kind and step leave out what need
// not be read. Throws what read_run() throws, and std::invalid_argument for wrong SQL. SQL is
// also wrong if it does more than read and compute, or takes too long.
QueryAccount query(const std::filesystem::path& run, const std::string& sql,
                   const QueryOutput& output, const QueryOptions& options = {});

}  // namespace trainmon
