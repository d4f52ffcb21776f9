// Rows of a run as a statement of SQL reads them: the cells that it asks for and nothing else.
#pragma once

#include <sqlite3.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "answers/query_cells.h"
#include "read/columns.h"

namespace trainmon {

// Columns of the table of rows, a bit each, as SQLite's colUsed has them.
using UsedColumns = std::uint64_t;
// "ORDER BY column", or "GROUP BY".
struct OrderTerm {
  int column = 0;
  bool descending = false;
};

class QueryRows {
 public:
  // `series`: those that rows refer to; they outlive this.
  QueryRows(const std::vector<Series>& series, UsedColumns used);

  // Whether the table has the column for all rows of a series at once.
  static bool is_of_series(int column);
  // Bytes that a row takes, its place in another order included.
  static std::size_t bytes_of_row(UsedColumns used);

  // What the cells are made of.
  Columns columns() const;
  void add(const ReadRow& row);
  // Rows of the same run and columns, behind these.
  void add(const QueryRows& others);
  // By columns of series, as SQLite compares them; rows that are equal stay in their order. No row
  // is added afterwards.
  void sort(std::span<const OrderTerm> order);
  std::size_t size() const { return series_of_.size(); }
  // Of its members those whose columns are used.
  RowPlace place(std::size_t row) const;
  // Answers with a cell, of a column that is used.
  void answer(sqlite3_context* context, std::size_t row, int column) const;

 private:
  std::uint64_t cell(std::size_t row, std::size_t column) const;

  using CellOf = std::uint64_t (*)(const ReadRow&);
  static constexpr std::size_t kNotKept = ~std::size_t{0};

  const std::vector<Series>* series_;
  std::vector<std::string_view> fields_;  // that are used
  std::vector<CellOf> cell_of_;           // of a field, those of a row first
  std::vector<Stat> stats_;               // whose cells follow
  std::vector<std::size_t> place_;        // of a column among the cells
  std::vector<std::uint32_t> series_of_;  // of rows
  std::vector<std::uint64_t> cells_;      // row after row
  std::vector<std::uint32_t> order_;      // rows in their order; empty: as they came
};

}  // namespace trainmon
