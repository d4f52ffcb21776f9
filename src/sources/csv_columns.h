// The records of a CSV file, their fields by the names of columns.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "sources/csv_records.h"
#include "sources/enum_names.h"
#include "sources/source.h"

namespace trainmon {

class CsvColumns {
 public:
  explicit CsvColumns(const std::vector<std::string_view>& names);
  const std::string& fault() const { return fault_; }          // set: no record can be used
  const std::string& row_fault() const { return row_fault_; }  // set: nor as a row
  int at(std::string_view name) const;                         // -1: none of this name
  const std::vector<std::string>& names() const { return names_; }

  // Fields of a record by name. What is no number is told in `fault`; a column that is not there
  // gives what stands for it.
  std::string_view text(const CsvRecords& records, std::string_view name) const;
  std::int64_t integer(const CsvRecords& records, std::string_view name, std::string& fault,
                       std::int64_t missing = 0) const;
  std::int32_t small(const CsvRecords& records, std::string_view name, std::string& fault,
                     std::int32_t missing = 0) const;
  double number(const CsvRecords& records, std::string_view name, std::string& fault,
                double missing = 1.0) const;
  // `value` stays where the field is empty or names no enumerator.
  template <typename Enum, typename Name>
  void enumerator(const CsvRecords& records, std::string_view column, Enum last, const Name& name,
                  Enum& value, std::string& fault) const {
    const std::string_view field = text(records, column);
    if (field.empty()) return;
    const std::optional<Enum> found = enum_from_name(field, last, name);
    if (!found) fault = std::string(column) + " '" + printable(field) + "' is none";
    value = found.value_or(value);
  }
  // kind, chunk, name, element, optimizer, dtype and replication.
  Series series(const CsvRecords& records, std::string& fault) const;

 private:
  std::vector<std::string> names_;
  std::string fault_;
  std::string row_fault_;
};

// What is wrong with a record; empty: nothing.
using UseRecord = std::function<std::string(const CsvColumns&, const CsvRecords&)>;
// Calls use() with every record that has as many fields as the first line. A record that is not
// sound, by its form or as use() finds, is rejected as one row. `counts_progress`: bytes read are
// told to the account.
void for_each_record(const std::filesystem::path& file, RowAccount& account, const UseRecord& use,
                     bool counts_progress = false);
// The same for files whose records are no rows; one that is not there has none.
void for_each_fact(const std::filesystem::path& file, RowAccount& account, const UseRecord& use);

}  // namespace trainmon
