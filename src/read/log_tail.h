// The log of one rank and restart while it grows: each byte is read once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "read/log_bounds.h"
#include "read/log_scan.h"
#include "trainmon/read.h"

namespace trainmon {

class LogTail {
 public:
  // Begins `segments` before the end of what the first look finds. Where that is nothing, it begins
  // with what comes.
  LogTail(std::filesystem::path directory, int rank, int restart, std::size_t segments);

  // Whether it began at the log's beginning.
  bool is_whole() const { return is_whole_; }
  // Of the batches given so far, and of those a look gives.
  const std::map<SeriesId, Series>& series() const { return series_; }

  // Gives the batches that are new, as they were written, and says whether there were any bytes.
  // Stops with the frame in which `most` bytes end: the next look goes on there. Records of series
  // nobody defined are not in them, which is damage.
  static constexpr std::int64_t kAll = std::int64_t{1} << 60;
  using Take = std::function<void(RecordBatch&&)>;
  bool look(const Take& take, std::vector<Damage>& damage, std::int64_t most = kAll);

 private:
  void begin(int segment);
  bool is_expired() const;
  bool read(const Take& take, bool is_last, std::int64_t& most, std::vector<Damage>& damage);
  // At most `most` bytes of it; whether there are more.
  std::pair<std::string, bool> read_rest(std::int64_t most);
  bool is_new(std::uint64_t batch);
  void take_frames(std::string_view bytes, bool is_last, const Take& take,
                   std::vector<Damage>& damage);
  bool take_frame(LogFrame& frame, FrameBounds& bounds, const Take& take,
                  std::vector<Damage>& damage, std::string& why);
  void drop_undefined(RecordBatch& batch, std::int64_t offset, std::vector<Damage>& damage) const;
  std::filesystem::path path(int segment) const;

  const std::filesystem::path directory_;
  const int rank_;
  const int restart_;
  std::size_t from_end_;
  bool is_whole_ = true;
  std::optional<int> segment_;  // the one being read
  FileIdentity file_;           // that had its name
  std::int64_t offset_ = 0;     // of it, read so far
  std::uint32_t frames_ = 0;    // of it, read so far
  bool is_foreign_ = false;     // of another log or number
  std::int64_t said_ = -1;      // the end of the newest bytes that were called unusable
  std::map<SeriesId, Series> series_;
  Allowance allowance_;
  std::set<std::uint64_t> numbers_;  // of the newest batches: none is given twice
};

}  // namespace trainmon
