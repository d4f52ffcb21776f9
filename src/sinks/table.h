// The wide table that the sinks csv and sqlite write, and so do converters: one line per row of a
// run, its key joined with its series, every statistic a column.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainmon/read.h"
#include "trainmon/record.h"
#include "trainmon/stat.h"

namespace trainmon {

enum class CellType : std::uint8_t { integer, real, text };
struct TableColumn {
  std::string_view name;
  CellType type;
};
// restart rank kind chunk name element optimizer step attempt micro_step call seq flags window
// accum fate loss_scale dtype replication shape, in this order: the columns of trainmon.read().
std::span<const TableColumn> key_columns();
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
struct TableRow {
  std::int32_t restart = 0;
  std::int32_t rank = 0;  // -1: merged over ranks
  const Series* series = nullptr;
  std::int64_t step = 0;
  std::int32_t attempt = 0;
  std::int32_t micro_step = 0;
  std::int32_t call = 0;
  std::uint64_t seq = 0;
  std::uint32_t flags = 0;
  std::int64_t window = 0;
  std::int32_t accum = 0;
  Fate fate = Fate::unknown;
  double loss_scale = 1.0;
  const Shape* shape = nullptr;    // nullptr: not known
  std::uint64_t absent = 0;        // bit i: statistic i is not there (not NaN, but not known)
  std::span<const double> values;  // one per statistic
};

}  // namespace trainmon
