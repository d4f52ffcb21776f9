// The columns of rows in a log, value by value back into rows.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
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

  // Puts the next rows.size() values into the rows; false where they cannot be decoded.
  bool read(std::vector<Row>& rows);
  // Every byte was used.
  bool is_at_end() const { return data_.ok() && data_.left() == 0; }
  const log_format::ColumnDefinition& definition() const { return *definition_; }

 private:
  bool read_integers(std::vector<Row>& rows);
  bool read_floats(std::vector<Row>& rows);

  const log_format::ColumnDefinition* definition_;
  log_format::Encoding encoding_;
  log_format::ByteReader data_;
  std::uint64_t running_ = 0;  // of differences; of a constant integer, the value
  double constant_ = 0.0;
};

// "column seq cannot be decoded".
std::string column_fault(const log_format::ColumnDefinition& definition);

}  // namespace trainmon
