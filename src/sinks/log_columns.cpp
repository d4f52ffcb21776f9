// Integers as varints, or as differences; floats as float32 where that loses nothing.
#include "sinks/log_columns.h"

#include <algorithm>
#include <bit>
#include <optional>

namespace trainmon::log_format {
namespace {

// A column's values side by side.
const std::vector<std::int64_t>& gathered(const std::vector<Row>& rows, Column column,
                                          std::vector<std::int64_t>& values) {
  values.resize(rows.size());
  with_integer(column, [&](const auto& member) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      values[i] = static_cast<std::int64_t>(member(rows[i]));
    }
  });
  return values;
}

void append_integers(ByteWriter& writer, const std::vector<std::int64_t>& values, Column column) {
  const std::int64_t first = values.front();
  const auto varint_bytes = [](std::int64_t value) {
    return (static_cast<std::size_t>(std::bit_width(zigzag(value) | 1)) + 6) / 7;
  };
  const auto difference = [](std::int64_t a, std::int64_t b) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b));
  };
  const bool is_constant =
      std::ranges::all_of(values, [first](std::int64_t value) { return value == first; });
  // Never for seq, so that rows never outnumber bytes.
  if (is_constant && column != Column::seq) {
    writer.fixed(static_cast<std::uint8_t>(Encoding::constant));
    return append_block(writer, [&](ByteWriter& block) { block.signed_varint(first); });
  }
  std::size_t plain_bytes = 0, delta_bytes = 0;
  std::int64_t before = 0;
  for (const std::int64_t value : values) {
    plain_bytes += varint_bytes(value);
    delta_bytes += varint_bytes(difference(value, before));
    before = value;
  }
  const bool is_delta = delta_bytes < plain_bytes;
  writer.fixed(static_cast<std::uint8_t>(is_delta ? Encoding::delta : Encoding::plain));
  writer.varint(is_delta ? delta_bytes : plain_bytes);
  before = 0;
  for (const std::int64_t value : values) {
    writer.signed_varint(is_delta ? difference(value, before) : value);
    before = value;
  }
}

void append_floats(ByteWriter& writer, const std::vector<Row>& rows, Column column) {
  double RowState::*const member = float_member(column);
  const double first = rows.front().state.*member;
  bool is_constant = true, is_float32 = true;
  bool is_implied = column == kMean || column == kAbsmax;
  for (const Row& row : rows) {
    const double value = row.state.*member;
    is_constant = is_constant && same_bits(value, first);
    is_float32 = is_float32 && same_bits(static_cast<double>(static_cast<float>(value)), value);
    if (!is_implied) continue;
    const std::optional<double> implied = implied_value(row.state, column);
    is_implied = implied && same_bits(*implied, value);
  }
  const Encoding encoding = is_implied    ? Encoding::implied
                            : is_constant ? Encoding::constant
                            : is_float32  ? Encoding::float32
                                          : Encoding::plain;
  writer.fixed(static_cast<std::uint8_t>(encoding));
  if (encoding == Encoding::implied) return writer.varint(0);
  if (encoding == Encoding::constant) {
    writer.varint(sizeof(double));
    return writer.fixed(first);
  }
  const std::size_t size = encoding == Encoding::float32 ? sizeof(float) : sizeof(double);
  writer.varint(rows.size() * size);
  for (const Row& row : rows) {
    const double value = row.state.*member;
    if (encoding == Encoding::float32) {
      writer.fixed(static_cast<float>(value));
    } else {
      writer.fixed(value);
    }
  }
}

}  // namespace

void append_column(ByteWriter& writer, const ColumnDefinition& definition,
                   const std::vector<Row>& rows, const std::vector<std::int64_t>& shapes,
                   std::vector<std::int64_t>& room) {
  const Column column = definition.column;
  if (definition.type == ColumnType::float64) return append_floats(writer, rows, column);
  append_integers(writer, column == Column::shape ? shapes : gathered(rows, column, room), column);
}

}  // namespace trainmon::log_format
