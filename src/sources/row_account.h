// The books of whoever reads rows: every row is used, rejected, superseded or left out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "trainmon/read.h"

namespace trainmon {

// Rows of the source that could not be used.
struct RejectedRows {
  std::filesystem::path file;
  std::int64_t line = 0;  // of a text file, from 1; 0: the file, or a place that `what` names
  std::int64_t rows = 1;  // 0: nobody can tell how many
  std::string what;
};
// "rows.csv line 3: step 'x' is no whole number".
std::string rejection_text(const RejectedRows& rows);

struct RowReport {
  std::int64_t rows = 0;  // of the source, selected: written + rejected + superseded + left_out
  std::int64_t written = 0;
  std::int64_t rejected = 0;
  std::int64_t superseded = 0;  // a restart went through their step again
  std::int64_t left_out = 0;    // the target has no place for them
  std::vector<RejectedRows> rejections;
  std::vector<std::string> remarks;  // what the target has no place for, and the like
};

// What became of the rows that were read. Any thread.
class RowAccount {
 public:
  void read(std::int64_t rows);
  void reject(RejectedRows rows);
  void supersede(std::int64_t rows);
  void leave_out(std::int64_t rows);
  void remark(const std::string& text);  // each once
  // How far a source is: bytes of a part that are done.
  void advance(std::int64_t bytes) const {
    if (on_advance_) on_advance_(bytes);
  }
  void on_advance(std::function<void(std::int64_t)> call) { on_advance_ = std::move(call); }
  // Files and bytes of runs that cannot be used.
  void damage(const std::vector<Damage>& found);
  RowReport report() const;

 private:
  mutable std::mutex mutex_;
  RowReport report_;
  std::int64_t unlisted_ = 0;
  std::function<void(std::int64_t)> on_advance_;
};

}  // namespace trainmon
