// The columns of rows in a log: each takes the smallest encoding that gives back exactly the same
// values (docs/formats.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sinks/log_format.h"
#include "trainmon/record.h"

namespace trainmon::log_format {

// A block with its length in front, so that readers can step over what they do not know.
template <typename Fill>
void append_block(ByteWriter& writer, const Fill& fill) {
  std::string block;
  ByteWriter inner(block);
  fill(inner);
  writer.text(block);
}

// Appends the encoding of one column of all rows, which are not none, and its data as bytes.
// `shapes` has a number for each row, as the column of shapes holds them. `room` is memory that the
// next column uses again.
void append_column(ByteWriter& writer, const ColumnDefinition& definition,
                   const std::vector<Row>& rows, const std::vector<std::int64_t>& shapes,
                   std::vector<std::int64_t>& room);

}  // namespace trainmon::log_format
