// The mirror of src/sinks/log_columns.cpp.
#include "read/log_columns.h"

#include <algorithm>
#include <optional>
#include <type_traits>

namespace trainmon {

using namespace log_format;

namespace {

template <typename T>
bool read_fixed(ByteReader& reader, double RowState::*member, std::size_t count,
                std::span<const std::uint32_t> chosen, std::vector<Row>& rows) {
  const std::string_view block = reader.take(count * sizeof(T));
  if (block.size() != count * sizeof(T)) return false;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    ByteReader value(block.substr(chosen[i] * sizeof(T), sizeof(T)));
    rows[i].state.*member = static_cast<double>(value.fixed<T>());
  }
  return true;
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

bool ColumnReader::read(std::size_t count, std::span<const std::uint32_t> chosen,
                        std::vector<Row>& rows) {
  const bool is_known = definition_->type == ColumnType::integer
                            ? read_integers(count, chosen, rows)
                            : read_floats(count, chosen, rows);
  return is_known && data_.ok();
}

bool ColumnReader::read(std::size_t count, std::vector<std::uint64_t>& values) {
  values.resize(count);
  switch (encoding_) {
    case Encoding::constant:
      std::ranges::fill(values, running_);
      break;
    case Encoding::plain:
      for (std::uint64_t& value : values) value = static_cast<std::uint64_t>(data_.signed_varint());
      break;
    case Encoding::delta:
      for (std::uint64_t& value : values) {
        value = running_ += static_cast<std::uint64_t>(data_.signed_varint());
      }
      break;
    default:
      return false;
  }
  return data_.ok();
}

bool ColumnReader::read_integers(std::size_t count, std::span<const std::uint32_t> chosen,
                                 std::vector<Row>& rows) {
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
      std::size_t at = 0;
      for (std::size_t i = 0; i < chosen.size(); ++i) {
        data_.skip_varints(chosen[i] - at);
        member(rows[i]) = static_cast<Member>(data_.signed_varint());
        at = chosen[i] + std::size_t{1};
      }
      data_.skip_varints(count - at);
    } else {
      std::uint64_t value = running_;
      for (std::size_t at = 0, i = 0; at < count; ++at) {
        value += static_cast<std::uint64_t>(data_.signed_varint());
        if (i < chosen.size() && chosen[i] == at) member(rows[i++]) = static_cast<Member>(value);
      }
      running_ = value;
    }
  });
  return true;
}

bool ColumnReader::read_floats(std::size_t count, std::span<const std::uint32_t> chosen,
                               std::vector<Row>& rows) {
  double RowState::*const member = float_member(definition_->column);
  switch (encoding_) {
    case Encoding::constant:
      for (Row& row : rows) row.state.*member = constant_;
      return true;
    case Encoding::plain:
      return read_fixed<double>(data_, member, count, chosen, rows);
    case Encoding::float32:
      return read_fixed<float>(data_, member, count, chosen, rows);
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

void RowReader::add(ColumnReader column) {
  const bool is_series = column.definition().column == Column::series;
  columns_.insert(is_series ? columns_.begin() : columns_.end(), column);
}

bool RowReader::choose(std::size_t count, const WantedSeries& wanted, std::string& why) {
  const bool has_series =
      !columns_.empty() && columns_.front().definition().column == Column::series;
  if (!has_series) {
    series_.assign(count, 0);
  } else if (!columns_.front().read(count, series_)) {
    why = column_fault(columns_.front().definition());
    return false;
  }
  chosen_.clear();
  for (std::uint32_t i = 0; i < count; ++i) {
    if (!wanted || wanted(static_cast<SeriesId>(series_[i]))) chosen_.push_back(skipped_ + i);
  }
  return true;
}

bool RowReader::read(std::size_t count, const WantedSeries& wanted, std::vector<Row>& rows,
                     std::string& why) {
  rows.clear();
  if (!choose(count, wanted, why)) return false;
  const std::uint32_t before =
      std::exchange(skipped_, skipped_ + static_cast<std::uint32_t>(count));
  if (chosen_.empty()) return true;
  rows.assign(chosen_.size(), Row());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].key.series = static_cast<SeriesId>(series_[chosen_[i] - before]);
  }
  const ColumnDefinition* const faulty = read_columns(rows);
  if (faulty != nullptr) why = column_fault(*faulty);
  for (Row& row : rows) {  // whichever columns of its state are asked for
    if ((row.key.flags & flag::kSampled) != 0) row.state.mark_estimate();
  }
  return faulty == nullptr;
}

const ColumnDefinition* RowReader::read_columns(std::vector<Row>& rows) {
  const std::size_t count = std::exchange(skipped_, 0);
  for (ColumnReader& column : columns_) {
    if (column.definition().column == Column::series) continue;
    if (!column.read(count, chosen_, rows)) return &column.definition();
  }
  return nullptr;
}

const ColumnDefinition* RowReader::not_at_end() {
  std::vector<Row> none;
  chosen_.clear();
  if (const ColumnDefinition* const faulty = read_columns(none)) return faulty;
  const auto found = std::ranges::find_if_not(columns_, &ColumnReader::is_at_end);
  return found == columns_.end() ? nullptr : &found->definition();
}

}  // namespace trainmon
