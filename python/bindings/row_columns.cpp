#include "row_columns.h"

#include <algorithm>
#include <string>
#include <utility>

#include "columns.h"

namespace trainmon {
namespace {

// So few rows that they stay in the cache while every column takes its values from them.
constexpr std::size_t kBlock = 256;

bool is_count(Stat stat) {
  return stat_table()[static_cast<std::size_t>(stat)].type == "int64";
}

template <typename T>
std::shared_ptr<Column> empty_column(std::string_view name, std::size_t rows) {
  auto column = std::make_shared<Column>();
  column->name = name;
  column->values = std::vector<T>();
  std::get<std::vector<T>>(column->values).reserve(rows);
  return column;
}

template <typename T>
void put(Column& column, const T& value) {
  std::get<std::vector<T>>(column.values).push_back(value);
}

// What two texts of one series differ by.
std::uint64_t key_of(const Shape* shape) {
  return reinterpret_cast<std::uintptr_t>(shape);
}
template <typename T>
std::uint64_t key_of(const T& member) {
  return static_cast<std::uint64_t>(member);
}

}  // namespace

RowColumns::RowColumns(const std::vector<Series>& series, std::vector<Stat> stats)
    : series_(series), stats_(std::move(stats)) {
  for (FieldTexts& texts : texts_) texts.last.resize(series_.size());
}

void RowColumns::number_texts() {
  std::size_t place = 0;
  for_each_field(kWideRow, [&]<typename Owner, typename T>(const Field<Owner, T>& field) {
    FieldTexts& texts = texts_[place++];
    if constexpr (cell_type<T>() == CellType::text) {
      if constexpr (std::is_same_v<T, Fate>) {
        for (const Fate fate : {Fate::taken, Fate::skipped, Fate::unknown}) {
          texts.coder.code(text_of(fate));
        }
      }
      ReadRow row;
      for (const Series& one : series_) {
        row.series = static_cast<std::uint32_t>(&one - series_.data());
        row.shape = &one.full_shape;
        if constexpr (!std::is_same_v<T, Fate>) texts.coder.code(text_of(field.of(row, one)));
      }
    }
  });
}

template <typename Owner, typename T>
std::int32_t RowColumns::code(FieldTexts& texts, const Field<Owner, T>& field,
                              const ReadRow& row) const {
  const Series& series = series_[row.series];
  std::uint64_t key = 0;
  if constexpr (!std::is_same_v<Owner, Series>) key = key_of(field.of(row, series));
  Last& last = texts.last[row.series];
  if (last.key != key) last = {key, texts.coder.code(text_of(field.of(row, series)))};
  return last.code;
}

template <typename Owner, typename T>
void RowColumns::fill(Column& column, FieldTexts& texts, const Field<Owner, T>& field,
                      std::span<const ReadRow> rows) {
  using Value = FieldValue<T>;
  for (const ReadRow& row : rows) {
    if constexpr (cell_type<T>() == CellType::text) {
      put(column, code(texts, field, row));
    } else {
      const T& member = field.of(row, series_[row.series]);
      if constexpr (cell_type<T>() == CellType::fingerprint) {
        put(column, static_cast<Value>(member.value_or(Fingerprint())));
        column.are_unknown.push_back(member ? 0 : 1);
      } else {
        put(column, static_cast<Value>(member));
      }
    }
  }
}

void RowColumns::fill_statistics(std::span<const std::shared_ptr<Column>> columns,
                                 std::span<const ReadRow> rows) const {
  for (std::size_t i = 0; i < stats_.size(); ++i) {
    Column& column = *columns[i];
    for (const ReadRow& row : rows) {
      const double value = derive(stats_[i], row.state);
      if (!is_count(stats_[i])) {
        put(column, value);
        continue;
      }
      // Of an estimate nothing is known; a column without one has no mask.
      auto& masked = column.are_unknown;
      const bool is_known = is_told(stats_[i], row.state);
      const std::size_t before = std::get<std::vector<std::int64_t>>(column.values).size();
      if (!is_known && masked.empty()) masked.assign(before, 0);
      if (!is_known || !masked.empty()) masked.push_back(is_known ? 0 : 1);
      put(column, is_known ? static_cast<std::int64_t>(value) : std::int64_t{0});
    }
  }
}

std::shared_ptr<ColumnTable> RowColumns::table(std::span<const ReadRow> rows) {
  auto table = std::make_shared<ColumnTable>();
  table->rows = std::ssize(rows);
  for_each_field(kWideRow, [&]<typename Owner, typename T>(const Field<Owner, T>& field) {
    table->columns.push_back(empty_column<FieldValue<T>>(field.name, rows.size()));
  });
  const std::size_t first_statistic = table->columns.size();
  for (const Stat stat : stats_) {
    table->columns.push_back(is_count(stat)
                                 ? empty_column<std::int64_t>(stat_name(stat), rows.size())
                                 : empty_column<double>(stat_name(stat), rows.size()));
  }
  const std::span statistics = std::span(table->columns).subspan(first_statistic);
  for (std::size_t begin = 0; begin < rows.size(); begin += kBlock) {
    const auto block = rows.subspan(begin, std::min(kBlock, rows.size() - begin));
    std::size_t place = 0;
    for_each_field(kWideRow, [&](const auto& field) {
      fill(*table->columns[place], texts_[place], field, block);
      ++place;
    });
    fill_statistics(statistics, block);
  }
  std::size_t place = 0;
  for_each_field(kWideRow, [&]<typename Owner, typename T>(const Field<Owner, T>&) {
    if (cell_type<T>() == CellType::text)
      table->columns[place]->texts = texts_[place].coder.texts();
    ++place;
  });
  return table;
}

}  // namespace trainmon
