// A run that was read, as Python sees it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrow_export.h"
#include "trainmon/read.h"

namespace trainmon {

// Held in C++; columns are made when asked for.
class Rows {
 public:
  explicit Rows(RunRows run) : run_(std::move(run)) {}
  const RunRows& run() const { return run_; }

  std::size_t size() const { return run_.rows.size(); }
  // The fields of the wide row, then these statistics. Throws ValueError for a name that is none's.
  std::shared_ptr<ColumnTable> columns(const std::vector<std::string>& stats) const;
  ColumnTable scalars() const;
  ColumnTable declared() const;
  // (type, bytes, place): Python knows what a type means.
  nanobind::list payloads() const;
  nanobind::list alerts() const;
  nanobind::list gaps() const;

 private:
  RunRows run_;
};

nanobind::list text_list(const std::vector<std::string>& all);
// (file, offset, what) of each.
nanobind::list damage_list(const std::vector<Damage>& all);

// The statistic of this name; throws ValueError.
Stat statistic(const std::string& name);
std::vector<Stat> statistics(const std::vector<std::string>& names);

// What is asked of a run, as both read() and first_bad() take it.
ReadOptions options_of(std::vector<std::string> kinds, std::vector<std::string> include,
                       std::vector<std::string> exclude, std::vector<int> ranks,
                       std::optional<std::int64_t> first_step,
                       std::optional<std::int64_t> last_step);

}  // namespace trainmon
