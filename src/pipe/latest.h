// The rows of the last completed window of every optimizer, for mon.latest() and mon.summary().
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "trainmon/record.h"

namespace trainmon {

// look() is called from the writer thread, rows() from any.
class Latest {
 public:
  explicit Latest(std::size_t limit_bytes) : limit_(limit_bytes) {}

  void look(const RecordBatch& batch, const SeriesTable& series);
  std::vector<Row> rows() const;

 private:
  using Window = std::pair<std::int32_t, std::int64_t>;  // optimizer, window

  const std::size_t limit_;
  mutable std::mutex mutex_;
  std::size_t used_ = 0;
  std::map<Window, std::vector<Row>> open_;
  std::map<std::int32_t, std::vector<Row>> done_;
};

}  // namespace trainmon
