// Records of a CSV file (RFC 4180), as damaged as it may be. Every record is handed over whole
// with its line, or named as not usable.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace trainmon {

// Splits `text`, which must outlive it. A record whose quotes do not match gives up its first line
// only: reading goes on with the next.
class CsvRecords {
 public:
  explicit CsvRecords(std::string_view text) : text_(text) {}

  // The next record; false at the end. Fields are valid until the next call.
  bool next();

  std::int64_t line() const { return line_; }   // of the record's beginning, from 1
  std::size_t begin() const { return begin_; }  // its first byte
  std::size_t end() const { return at_; }       // the byte after it
  bool is_sound() const { return fault_.empty(); }
  // Why it cannot be used: an unclosed quote, a NUL byte, no line end (cut off).
  std::string_view fault() const { return fault_; }
  const std::vector<std::string_view>& fields() const { return fields_; }

  // Goes on at a byte where a record begins, with its line.
  void seek(std::size_t begin, std::int64_t line);

 private:
  bool split(std::size_t begin);
  void give_up_line(std::string_view why);

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t begin_ = 0;
  std::int64_t line_ = 0;
  std::int64_t next_line_ = 1;
  std::string_view fault_;
  std::vector<std::string_view> fields_;
  std::vector<std::string> unquoted_;  // fields that had doubled quotes
};

// The records of a file, of which a few megabytes are in memory at a time.
class CsvFile {
 public:
  // Throws SinkError when it cannot be read, as next() does.
  explicit CsvFile(std::filesystem::path path);
  bool next();
  const CsvRecords& record() const { return records_; }
  std::int64_t bytes_read() const { return read_; }

 private:
  void refill(std::size_t begin, std::int64_t line);

  std::filesystem::path path_;
  File file_;
  std::string text_;
  std::int64_t read_ = 0;
  bool is_at_end_ = false;
  CsvRecords records_{{}};
};

// A number as CSV files hold it: decimal, nan, inf, -inf in any case; false for anything else.
bool parse_number(std::string_view text, double& value);
bool parse_integer(std::string_view text, std::int64_t& value);

}  // namespace trainmon
