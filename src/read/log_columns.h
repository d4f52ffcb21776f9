// The columns of rows in a log, value by value back into rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sinks/log_format.h"
#include "trainmon/record.h"

namespace trainmon {

// nullptr for a column of a later version.
const log_format::ColumnDefinition* known_column(std::uint8_t id);

class ColumnReader {
 public:
  // `data` is the column without its encoding; it must outlive the reader.
  ColumnReader(const log_format::ColumnDefinition& definition, log_format::Encoding encoding,
               std::string_view data);

  // Of the next `count` values, puts those at the places `chosen`, ascending, into the rows.
  // There are as many rows as places. False where they cannot be decoded.
  bool read(std::size_t count, std::span<const std::uint32_t> chosen, std::vector<Row>& rows);
  // The next `count` values of a column of integers.
  bool read(std::size_t count, std::vector<std::uint64_t>& values);
  // Every byte was used.
  bool is_at_end() const { return data_.ok() && data_.left() == 0; }
  const log_format::ColumnDefinition& definition() const { return *definition_; }

 private:
  bool read_integers(std::size_t count, std::span<const std::uint32_t> chosen,
                     std::vector<Row>& rows);
  bool read_floats(std::size_t count, std::span<const std::uint32_t> chosen,
                   std::vector<Row>& rows);

  const log_format::ColumnDefinition* definition_;
  log_format::Encoding encoding_;
  log_format::ByteReader data_;
  std::uint64_t running_ = 0;  // of differences; of a constant integer, the value
  double constant_ = 0.0;
};

// "column seq cannot be decoded".
std::string column_fault(const log_format::ColumnDefinition& definition);

// Which series' rows to decode; empty: those of all.
using WantedSeries = std::function<bool(SeriesId)>;

// Rows from their columns, batch after batch.
class RowReader {
 public:
  // In the order of the file.
  void add(ColumnReader column);
  // The rows that are wanted among the next `count`, in their order. False where they cannot be
  // decoded; `why` tells.
  bool read(std::size_t count, const WantedSeries& wanted, std::vector<Row>& rows,
            std::string& why);
  // Behind the last rows: a column that has bytes left or too few; nullptr where none has.
  const log_format::ColumnDefinition* not_at_end();

 private:
  bool choose(std::size_t count, const WantedSeries& wanted, std::string& why);
  // Those that were chosen, of all rows that were skipped; the column that cannot be decoded.
  const log_format::ColumnDefinition* read_columns(std::vector<Row>& rows);

  std::vector<ColumnReader> columns_;  // of series first
  std::vector<std::uint64_t> series_;
  std::vector<std::uint32_t> chosen_;  // places, counted from the first row that was skipped
  std::uint32_t skipped_ = 0;          // rows that all columns but that of series are behind
};

}  // namespace trainmon
