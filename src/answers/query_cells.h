// The tables that a run is in SQL, and their cells.
#pragma once

#include <sqlite3.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "model/wide_row.h"
#include "read/samples.h"
#include "trainmon/read.h"

namespace trainmon {

enum class QueryRecords : std::uint8_t { rows, samples, logged, declared, alerts, gaps };
struct QueryTable {
  const char* name;
  QueryRecords records;
};
std::span<const QueryTable> query_tables();
// "restart INTEGER, rank INTEGER, ...", for CREATE TABLE.
std::string query_columns(QueryRecords records);

// Where the wide row has a field of this name: the column's number in the table.
int query_column(std::string_view field);
// How many records a run has that are no rows, and the answer with a cell of one of them.
std::size_t record_count(const RunRows& facts, QueryRecords records);
void answer_record(sqlite3_context* context, const RunRows& facts, QueryRecords records,
                   std::size_t index, int column);
// The same with a cell of a sample.
void answer_sample(sqlite3_context* context, const RunRows& facts, const SampledRow& one,
                   int column);

// Answers with a value: NaN and what is not known as NULL, text that is not UTF-8 as a blob, a
// fingerprint as its text.
struct Answer {
  sqlite3_context* context;
  void operator()(std::int64_t value) const { sqlite3_result_int64(context, value); }
  void operator()(double value) const { sqlite3_result_double(context, value); }
  void operator()(std::string_view text) const;
  void operator()(Fingerprint value) const { (*this)(std::string_view(fingerprint_text(value))); }
  void operator()(Unknown) const { sqlite3_result_null(context); }
};

}  // namespace trainmon
