// Rows of a run as columns: the fields of the wide row, then statistics.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "arrow_export.h"
#include "model/wide_row.h"
#include "trainmon/read.h"

namespace trainmon {

// Makes one table after another. The numbers of texts are those of the tables before.
class RowColumns {
 public:
  // The rows point into `series`, which outlives this.
  RowColumns(const std::vector<Series>& series, std::vector<Stat> stats);

  // Numbers all texts that rows of these series may have, but for shapes that vary. Tables that
  // follow have the same texts then.
  void number_texts();
  std::shared_ptr<ColumnTable> table(std::span<const ReadRow> rows);

 private:
  // The number of the text that a series had last; most have one.
  struct Last {
    std::uint64_t key = ~std::uint64_t{0};
    std::int32_t code = 0;
  };
  struct FieldTexts {
    TextCoder coder;
    std::vector<Last> last;  // by series
  };
  template <typename Owner, typename T>
  std::int32_t code(FieldTexts& texts, const Field<Owner, T>& field, const ReadRow& row) const;
  template <typename Owner, typename T>
  void fill(Column& column, FieldTexts& texts, const Field<Owner, T>& field,
            std::span<const ReadRow> rows);
  void fill_statistics(std::span<const std::shared_ptr<Column>> columns,
                       std::span<const ReadRow> rows) const;

  const std::vector<Series>& series_;
  const std::vector<Stat> stats_;
  std::array<FieldTexts, kFieldCount<decltype(kWideRow)>> texts_;
};

}  // namespace trainmon
