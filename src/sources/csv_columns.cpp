#include "sources/csv_columns.h"

#include <algorithm>

namespace trainmon {

CsvColumns::CsvColumns(const std::vector<std::string_view>& names) {
  for (const std::string_view name : names) {
    if (at(name) >= 0) fault_ = "its first line names column " + printable(name) + " twice";
    names_.emplace_back(name);
  }
  for_each_field(kWideRow, [&]<typename Owner, typename T>(const Field<Owner, T>& field) {
    if (row_fault_.empty() && at(field.name) < 0 && !kMayBeUnknown<T>) {
      row_fault_ = "its first line names no column " + std::string(field.name);
    }
  });
}

int CsvColumns::at(std::string_view name) const {
  const auto found = std::find(names_.begin(), names_.end(), name);
  return found == names_.end() ? -1 : static_cast<int>(found - names_.begin());
}

std::string_view CsvColumns::text(const CsvRecords& records, std::string_view name) const {
  const int column = at(name);
  return column < 0 ? std::string_view() : records.fields()[static_cast<std::size_t>(column)];
}

std::int64_t CsvColumns::integer(const CsvRecords& records, std::string_view name,
                                 std::string& fault, std::int64_t missing) const {
  std::int64_t value = missing;
  if (at(name) >= 0 && !parse_integer(text(records, name), value)) {
    fault = std::string(name) + " '" + printable(text(records, name)) + "' is no whole number";
  }
  return value;
}

std::int32_t CsvColumns::small(const CsvRecords& records, std::string_view name, std::string& fault,
                               std::int32_t missing) const {
  std::int32_t value = missing;
  KeptShapes none;
  member(records, name, value, none, fault);
  return value;
}

double CsvColumns::number(const CsvRecords& records, std::string_view name, std::string& fault,
                          double missing) const {
  double value = missing;
  if (at(name) >= 0 && !parse_number(text(records, name), value)) {
    fault = std::string(name) + " '" + printable(text(records, name)) + "' is no number";
  }
  return value;
}

Series CsvColumns::series(const CsvRecords& records, std::string& fault) const {
  Series series;
  KeptShapes none;  // a series has no shape here
  for_each_field_of<Series>(kWideRow, [&](const auto& field) {
    member(records, field.name, series.*field.member, none, fault);
  });
  return series;
}

std::int64_t for_each_record(const std::filesystem::path& file, RowAccount& account,
                             const UseRecord& use, bool counts_progress) {
  std::int64_t found = 0;
  try {
    CsvFile csv(file);
    const CsvRecords& records = csv.record();
    if (!csv.next() || !records.is_sound()) {
      account.reject(
          {file, 1, 0, csv.bytes_read() == 0 ? "the file is empty" : "it has no first line"});
      return 0;
    }
    const CsvColumns columns(records.fields());
    std::int64_t counted = 0;
    const auto advance = [&] {
      if (!counts_progress || counted == csv.bytes_read()) return;
      account.advance(csv.bytes_read() - counted);
      counted = csv.bytes_read();
    };
    while (csv.next()) {
      ++found;
      advance();
      std::string fault(records.fault().empty() ? columns.fault() : records.fault());
      if (fault.empty() && records.fields().size() != columns.names().size()) {
        fault = std::to_string(records.fields().size()) + " fields, its first line has " +
                std::to_string(columns.names().size());
      }
      if (fault.empty()) fault = use(columns, records);
      if (fault.empty()) continue;
      account.read(1);
      account.reject({file, records.line(), 1, std::move(fault)});
    }
    advance();
  } catch (const SinkError& error) {
    account.reject({file, 0, 0, error.what()});
  }
  return found;
}

void for_each_fact(const std::filesystem::path& file, RowAccount& account, const UseRecord& use) {
  std::error_code unknown;
  if (!std::filesystem::exists(file, unknown)) return;
  RowAccount apart;
  for_each_record(file, apart, use);
  for (const RejectedRows& one : apart.report().rejections) {
    account.reject({one.file, one.line, 0, one.what});
  }
}

}  // namespace trainmon
