// Offline: read runs back, find the first bad row, rank tensors, account for a run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trainmon/record.h"

namespace trainmon {

// Which rows to read. Empty lists mean all.
struct ReadOptions {
  std::vector<std::string> kinds;
  std::vector<std::string> include;  // name patterns of config.h
  std::vector<std::string> exclude;
  std::vector<int> ranks;
  std::optional<std::int64_t> first_step;  // inclusive
  std::optional<std::int64_t> last_step;   // inclusive
  bool all_restarts = false;  // false: the newest restart of a step that exists twice
  bool merged = false;        // union rows of all ranks merged, identical rows taken once
};

// One row as readers see it: key joined with series and outcome.
struct ReadRow {
  std::int32_t restart = 0;
  std::int32_t rank = 0;       // -1 for rows merged over ranks
  std::uint32_t series = 0;    // index into RunRows::series (unified over ranks)
  std::int64_t window = 0;
  std::int64_t step = 0;
  std::int32_t attempt = 0;
  Fate fate = Fate::unknown;
  double loss_scale = 1.0;
  std::int32_t accum = 0;
  std::int32_t micro_step = 0;  // accum modulo grad_acc_steps where that is known, else accum
  std::int32_t call = 0;
  std::uint64_t seq = 0;
  std::uint32_t flags = 0;
  RowState state;
};

struct ReadScalar {
  std::int32_t restart = 0;
  std::int32_t rank = 0;
  std::int64_t step = 0;
  std::string name;
  double value = 0.0;
};

// Damage met while reading, never silent: bytes that could not be used and where.
struct Damage {
  std::filesystem::path file;
  std::int64_t offset = 0;
  std::string what;
};

struct RunRows {
  std::vector<Series> series;
  std::vector<ReadRow> rows;      // by restart, step, attempt, rank, seq
  std::vector<ReadScalar> scalars;
  std::vector<Alert> alerts;
  std::vector<Gap> gaps;
  std::vector<Damage> damage;     // a torn tail of a killed run is not damage
  std::int64_t torn_tails = 0;
};

// Reads every rank and restart under `run` (also of a run being written). Throws
// std::runtime_error when the directory holds no run.
RunRows read_run(const std::filesystem::path& run, const ReadOptions& options = {});

// Where the run first went wrong: the non-finite row that comes first by step, attempt, accum,
// moment of the step (forward, backward, reduced gradient, weights, optimizer state), then seq.
struct FirstBad {
  ReadRow row;
  Series series;
  std::vector<int> ranks;  // every rank with a bad row at that same place, ascending
};
std::optional<FirstBad> first_bad(const RunRows& rows);

// The largest (or, for `smallest`, smallest) values of a statistic per series over the rows given;
// rows with NaN come first.
struct Ranked {
  ReadRow row;
  double value = 0.0;
};
std::vector<Ranked> top(const RunRows& rows, Stat stat, std::size_t count, bool smallest = false);

}  // namespace trainmon
