// The mirror of src/sinks/log_columns.cpp.
#include "read/log_columns.h"

#include <algorithm>
#include <optional>
#include <type_traits>

namespace trainmon {

using namespace log_format;

namespace {

template <typename T>
void read_fixed(ByteReader& reader, double RowState::*member, std::vector<Row>& rows) {
  ByteReader block(reader.take(rows.size() * sizeof(T)));
  for (Row& row : rows) row.state.*member = static_cast<double>(block.fixed<T>());
}

}  // namespace

const ColumnDefinition* known_column(std::uint8_t id) {
  const auto known = std::ranges::find(kColumns, Column{id}, &ColumnDefinition::column);
  return known == kColumns.end() ? nullptr : &*known;
}

std::string column_fault(const ColumnDefinition& definition) {
  return "column " + std::string(definition.name) + " cannot be decoded";
}

ColumnReader::ColumnReader(const ColumnDefinition& definition, Encoding encoding,
                           std::string_view data)
    : definition_(&definition), encoding_(encoding), data_(data) {
  if (encoding != Encoding::constant) return;
  if (definition.type == ColumnType::integer) {
    running_ = static_cast<std::uint64_t>(data_.signed_varint());
  } else {
    constant_ = data_.fixed<double>();
  }
}

bool ColumnReader::read(std::vector<Row>& rows) {
  const bool is_known =
      definition_->type == ColumnType::integer ? read_integers(rows) : read_floats(rows);
  return is_known && data_.ok();
}

bool ColumnReader::read_integers(std::vector<Row>& rows) {
  if (encoding_ != Encoding::constant && encoding_ != Encoding::plain &&
      encoding_ != Encoding::delta) {
    return false;
  }
  with_integer(definition_->column, [&](const auto& member) {
    using Member = std::decay_t<decltype(member(rows.front()))>;
    if (encoding_ == Encoding::constant) {
      const auto value = static_cast<Member>(running_);
      for (Row& row : rows) member(row) = value;
    } else if (encoding_ == Encoding::plain) {
      for (Row& row : rows) member(row) = static_cast<Member>(data_.signed_varint());
    } else {
      std::uint64_t value = running_;
      for (Row& row : rows) {
        value += static_cast<std::uint64_t>(data_.signed_varint());
        member(row) = static_cast<Member>(value);
      }
      running_ = value;
    }
  });
  return true;
}

bool ColumnReader::read_floats(std::vector<Row>& rows) {
  double RowState::*const member = float_member(definition_->column);
  switch (encoding_) {
    case Encoding::constant:
      for (Row& row : rows) row.state.*member = constant_;
      return true;
    case Encoding::plain:
      read_fixed<double>(data_, member, rows);
      return true;
    case Encoding::float32:
      read_fixed<float>(data_, member, rows);
      return true;
    case Encoding::implied:
      for (Row& row : rows) {
        const std::optional<double> value = implied_value(row.state, definition_->column);
        if (!value) return false;
        row.state.*member = *value;
      }
      return true;
    case Encoding::delta:
      return false;
  }
  return false;
}

}  // namespace trainmon
