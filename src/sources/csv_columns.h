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
#include "sources/row_members.h"
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
    if (!set_enumerator(value, text(records, column), last, name)) {
      fault = std::string(column) + " '" + printable(text(records, column)) + "' is none";
    }
  }
  // A member of a row or its series, from the column of its name.
  template <typename T>
  void member(const CsvRecords& records, std::string_view name, T& value, KeptShapes& shapes,
              std::string& fault) const {
    if constexpr (std::integral<T>) {
      const auto found = integer(records, name, fault, static_cast<std::int64_t>(value));
      if (!fits<T>(found)) {
        fault = std::string(name) + " " + std::to_string(found) + " is out of its range";
      }
      value = static_cast<T>(found);
    } else if constexpr (std::floating_point<T>) {
      value = number(records, name, fault, value);
    } else if (!set_member(value, text(records, name), shapes)) {
      fault = std::string(name) + " '" + printable(text(records, name)) + "' is none";
    }
  }
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
// told to the account. Returns how many records there are, those rejected as well.
std::int64_t for_each_record(const std::filesystem::path& file, RowAccount& account,
                             const UseRecord& use, bool counts_progress = false);
// The same for files whose records are no rows; one that is not there has none.
void for_each_fact(const std::filesystem::path& file, RowAccount& account, const UseRecord& use);

}  // namespace trainmon
