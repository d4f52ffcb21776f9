#include "answers/query_cells.h"

#include <algorithm>
#include <array>

#include "base/text.h"
#include "sinks/table.h"

namespace trainmon {
namespace {

constexpr std::array<QueryTable, 7> kTables = {{
    {"stats", QueryRecords::rows},
    {"rows", QueryRecords::rows},
    {"samples", QueryRecords::samples},
    {"logged", QueryRecords::logged},
    {"declared", QueryRecords::declared},
    {"alerts", QueryRecords::alerts},
    {"gaps", QueryRecords::gaps},
}};

std::string wide_columns() {
  std::string text;
  for_each_field(kWideRow, [&]<typename Owner, typename T>(const Field<Owner, T>& field) {
    text += std::string(field.name) + " " + std::string(sql_type(cell_type<T>())) + ", ";
  });
  for (const std::string& name : all_stat_names()) {
    text += "\"" + name + "\"" + (is_count(name) ? " INTEGER, " : " REAL, ");
  }
  text.resize(text.size() - 2);
  return text;
}

// Answers with one of these cells, by its number. Integers of every size are those of SQL.
class Pick {
 public:
  Pick(sqlite3_context* context, int column) : answer_{context}, column_(column) {}
  template <typename... Cells>
  void operator()(const Cells&... cells) const {
    int at = 0;
    ((at++ == column_ && (put(cells), true)) || ...);
  }

 private:
  template <typename T>
  void put(const T& cell) const {
    if constexpr (std::is_integral_v<T>) {
      answer_(static_cast<std::int64_t>(cell));
    } else {
      answer_(cell);
    }
  }
  void put(const DeclaredValue& value) const {
    if (value.type == DeclaredValue::Type::number) return answer_(value.number);
    if (value.type == DeclaredValue::Type::text) return answer_(std::string_view(value.text));
    answer_(Unknown());
  }

  const Answer answer_;
  const int column_;
};

}  // namespace

std::span<const QueryTable> query_tables() {
  return kTables;
}

std::string query_columns(QueryRecords records) {
  switch (records) {
    case QueryRecords::rows:
      break;
    case QueryRecords::samples:
      return "restart INTEGER, rank INTEGER, kind TEXT, chunk INTEGER, name TEXT, element TEXT, "
             "step INTEGER, attempt INTEGER, micro_step INTEGER, call INTEGER, seq INTEGER, "
             "elements INTEGER, mean_error REAL, norm_error REAL, sample_min REAL, "
             "sample_max REAL, sample_nans INTEGER, sample_infs INTEGER, sample_zeros INTEGER, "
             "sample_subnormals INTEGER";
    case QueryRecords::logged:
      return "restart INTEGER, rank INTEGER, step INTEGER, name TEXT, value REAL";
    case QueryRecords::declared:
      return "restart INTEGER, rank INTEGER, step INTEGER, optimizer INTEGER, "
             "param_group INTEGER, name TEXT, value, type TEXT, window INTEGER";
    case QueryRecords::alerts:
      return "restart INTEGER, rank INTEGER, rule TEXT, kind TEXT, name TEXT, element TEXT, "
             "step INTEGER, seq INTEGER, stat TEXT, value REAL, expected REAL, count INTEGER, "
             "message TEXT";
    case QueryRecords::gaps:
      return "restart INTEGER, rank INTEGER, reason TEXT, rows INTEGER, first_seq INTEGER, "
             "last_seq INTEGER";
  }
  return wide_columns();
}

int query_column(std::string_view field) {
  constexpr auto names = field_names(kWideRow);
  return static_cast<int>(std::ranges::find(names, field) - names.begin());
}

void Answer::operator()(std::string_view text) const {
  if (!is_utf8(text)) {
    sqlite3_result_blob64(context, text.data(), text.size(), SQLITE_TRANSIENT);
    return;
  }
  sqlite3_result_text64(context, text.empty() ? "" : text.data(), text.size(), SQLITE_TRANSIENT,
                        SQLITE_UTF8);
}

std::size_t record_count(const RunRows& facts, QueryRecords records) {
  switch (records) {
    case QueryRecords::rows:
    case QueryRecords::samples:
      break;
    case QueryRecords::logged:
      return facts.scalars.size();
    case QueryRecords::declared:
      return facts.declared.size();
    case QueryRecords::alerts:
      return facts.alerts.size();
    case QueryRecords::gaps:
      return facts.gaps.size();
  }
  return 0;
}

void answer_record(sqlite3_context* context, const RunRows& facts, QueryRecords records,
                   std::size_t index, int column) {
  const Pick pick(context, column);
  if (records == QueryRecords::logged) {
    const ReadScalar& s = facts.scalars[index];
    pick(s.restart, s.rank, s.step, s.name, s.value);
  } else if (records == QueryRecords::declared) {
    const ReadDeclared& d = facts.declared[index];
    pick(d.restart, d.rank, d.step, d.optimizer, d.group, d.value.name, d.value,
         declared_type_name(d.value.type), d.window);
  } else if (records == QueryRecords::gaps) {
    const ReadGap& g = facts.gaps[index];
    pick(g.restart, g.rank, g.gap.reason, g.gap.rows, g.gap.first_seq, g.gap.last_seq);
  } else if (records == QueryRecords::alerts) {
    const ReadAlert& a = facts.alerts[index];
    const Series& series = facts.series[a.alert.key.series];
    pick(a.restart, a.rank, a.alert.rule, series.kind, series.name, series.element, a.alert.step,
         a.alert.key.seq, a.alert.stat, a.alert.value, a.alert.expected, a.alert.count,
         a.alert.message);
  }
}

void answer_sample(sqlite3_context* context, const RunRows& facts, const SampledRow& one,
                   int column) {
  const auto& [row, sample] = one;
  const Series& series = facts.series[row.series];
  const RowState& state = row.state;
  const Pick pick(context, column);
  pick(row.restart, row.rank, series.kind, series.chunk, series.name, series.element, row.step,
       row.attempt, row.micro_step, row.call, row.seq, sample.elements, mean_error(state, sample),
       norm_error(state, sample), sample.min, sample.max, state.nans,
       state.pos_infs + state.neg_infs, state.zeros, state.subnormals);
}

}  // namespace trainmon
