// The wide table that the sinks csv and sqlite write, and so do converters. It has one line per
// row of a run, its key joined with its series, every statistic a column.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/wide_row.h"
#include "trainmon/read_row.h"
#include "trainmon/record.h"
#include "trainmon/stat.h"

namespace trainmon {

// INTEGER, REAL or TEXT: a fingerprint is text there.
std::string_view sql_type(CellType type);
// The names of every statistic of the table in stat.h, in its order.
const std::vector<std::string>& all_stat_names();
// Whether a statistic of this name is a whole number.
bool is_count(std::string_view statistic);
// A payload in one cell: a text as it is, a histogram as JSON, other bytes as hexadecimal digits.
std::string_view payload_type_name(PayloadType type);
std::string payload_cell(const Payload& payload);
// One cell of a record that is no row, with the name of its column.
struct Cell {
  std::string_view name;
  std::string text;
  bool is_number = false;
};
// restart rank step optimizer param_group name value type window, in this order. Of a value that is
// not known the cell is empty.
std::vector<Cell> declared_cells(const ReadDeclared& declared);
// Of the curve in TensorBoard: "declared/group_0/lr", "declared/optimizer_1/group_0/lr".
std::string declared_tag(std::int32_t optimizer, std::int32_t group, std::string_view name);

// A line of the table. Statistics are those that whoever hands it over has named before.
struct TableRow : RowPlace {
  const Series* series = nullptr;
  std::uint64_t absent = 0;        // bit i: statistic i is not there (not NaN, but not known)
  std::span<const double> values;  // one per statistic

  // Calls put() with what a table holds of statistic i, as put_cell() does.
  template <typename Put>
  decltype(auto) put_value(std::size_t i, bool is_count, const Put& put) const {
    if ((absent >> i & 1) != 0) return put(Unknown());
    return put_statistic(values[i], is_count, put);
  }
};

}  // namespace trainmon
