// TensorBoard's event files: records of protocol buffer messages, each with its checksums.
// Encoding and writing are apart, so that many events can be appended with one write.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "model/histogram.h"
#include "trainmon/stat.h"

namespace trainmon {

// Events encoded one after another. The memory is used again after clear().
class EventRecords {
 public:
  // What every file begins with.
  void version(double wall_time);
  // A reader forgets all events of earlier files whose step is `step` or later: a restart goes
  // through them again.
  void session_start(double wall_time, std::int64_t step);

  // One event with many values: begin, values, end. Tags that are not UTF-8 get U+FFFD in place of
  // what is not. An event that grows long is continued by another one of the same step.
  void begin(double wall_time, std::int64_t step);
  // As float32, the one type scalars have there; a finite value beyond its range becomes the
  // largest finite one.
  void scalar(std::string_view tag, double value);
  // The elements within its range: there is no place for the others.
  void histogram(std::string_view tag, const Histogram& histogram);
  void text(std::string_view tag, std::string_view text);
  // Without values there is no event.
  void end();

  const std::string& bytes() const { return bytes_; }
  bool empty() const { return bytes_.empty(); }
  void clear() { bytes_.clear(); }

 private:
  void record(std::string_view summary);
  void value(std::string_view tag, std::string_view content);

  std::string bytes_;    // whole records
  std::string values_;   // of the event under way
  std::string content_;  // of the value under way
  double wall_time_ = 0.0;
  std::int64_t step_ = 0;
};

// The name of a file of this process: names of one directory sort by time and restart.
// "events.out.tfevents.1767225600.0001.<host>.<pid>[.<number>]"
std::string event_file_name(std::int64_t unix_seconds, int restart, int number = 0);

// One file that only grows.
class EventFile {
 public:
  // Both throw SinkError. `create` makes a new file (reason "exists" where one is) and writes what
  // every file begins with.
  void create(const std::filesystem::path& path, double wall_time);
  // All of `records` or none; where what a failed write left cannot be cut off again, the file is
  // closed.
  void append(std::string_view records);

  bool is_open() const { return file_.is_open(); }
  // As File's: then it is not open any more.
  bool forget_lost() { return file_.forget_lost(); }
  // Somebody removed it.
  bool is_deleted() const { return file_.is_open() && linked_size(file_, path_) < 0; }
  const std::filesystem::path& path() const { return path_; }
  std::int64_t size() const { return size_; }
  void close() { file_.close(); }

 private:
  File file_;
  std::filesystem::path path_;
  std::int64_t size_ = 0;
};

}  // namespace trainmon
