// One statement prepared per table.
#include "sinks/run_tables.h"

#include <string>
#include <type_traits>
#include <utility>

#include "base/text.h"

namespace trainmon {
namespace {

std::string quoted_name(std::string_view name) {
  std::string text = "\"";
  for (const char c : name) {
    if (c == '"') text += '"';
    text += c;
  }
  return text + "\"";
}

std::string column_types(const std::vector<std::string>& statistics) {
  std::string text;
  for (const std::string& name : statistics) {
    text += ", " + quoted_name(name) + (is_count(name) ? " INTEGER" : " REAL");
  }
  return text;
}

std::string listed(const std::vector<std::string>& statistics, std::string_view before) {
  std::string text;
  for (const std::string& name : statistics) text += ", " + std::string(before) + quoted_name(name);
  return text;
}

constexpr const char* kTables = R"sql(
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE series (
  id INTEGER PRIMARY KEY, kind TEXT, chunk INTEGER, name TEXT, element TEXT, optimizer INTEGER,
  dtype TEXT, replication TEXT, space TEXT, ranges TEXT, full_shape TEXT);
CREATE TABLE outcomes (
  restart INTEGER, rank INTEGER, optimizer INTEGER, window INTEGER, step INTEGER, attempt INTEGER,
  fate TEXT, loss_scale REAL, PRIMARY KEY (restart, rank, optimizer, window)) WITHOUT ROWID;
CREATE TABLE scalars (
  restart INTEGER, rank INTEGER, optimizer INTEGER, step INTEGER, window INTEGER, seq INTEGER,
  name TEXT, value REAL);
CREATE TABLE declared_values (
  restart INTEGER, rank INTEGER, optimizer INTEGER, param_group INTEGER, step INTEGER,
  window INTEGER, name TEXT, type TEXT, value);
CREATE TABLE payloads (
  series INTEGER, restart INTEGER, rank INTEGER, step INTEGER, attempt INTEGER,
  micro_step INTEGER, call INTEGER, seq INTEGER, flags INTEGER, window INTEGER, accum INTEGER,
  type TEXT, value);
CREATE TABLE alerts (
  restart INTEGER, rank INTEGER, rule TEXT, series INTEGER, step INTEGER, window INTEGER,
  accum INTEGER, call INTEGER, seq INTEGER, flags INTEGER, stat TEXT, value REAL, expected REAL,
  count INTEGER, message TEXT, PRIMARY KEY (restart, rank, series, seq, rule, stat)) WITHOUT ROWID;
CREATE TABLE gaps (
  restart INTEGER, rank INTEGER, reason TEXT, rows INTEGER, first_seq INTEGER, last_seq INTEGER);
)sql";

template <typename Owner, typename T>
constexpr bool is_stored(const Field<Owner, T>& field) {
  return !std::is_same_v<Owner, Series> && field.name != "fate" && field.name != "loss_scale";
}

// The fields that the table rows has: those of the row that the outcome does not tell alone.
template <typename Use>
void for_each_stored_field(const Use& use) {
  const auto use_one = [&]<std::size_t I>(std::integral_constant<std::size_t, I>) {
    constexpr auto field = std::get<I>(kWideRow);
    if constexpr (is_stored(field)) use(field);
  };
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    (use_one(std::integral_constant<std::size_t, I>()), ...);
  }
  (std::make_index_sequence<kFieldCount<decltype(kWideRow)>>());
}

struct RowColumns {
  std::string text = "series INTEGER";
  std::size_t count = 1;
};

RowColumns row_columns(const std::vector<std::string>& statistics) {
  RowColumns columns;
  for_each_stored_field([&]<typename T>(const Field<RowPlace, T>& field) {
    columns.text += ", " + std::string(field.name) + " " + std::string(sql_type(cell_type<T>()));
    ++columns.count;
  });
  columns.text += column_types(statistics);
  columns.count += statistics.size();
  return columns;
}

// An expression as a column of a view. The cast gives it an affinity: without one '8' is not 8.
std::string column_as(const std::string& expression, std::string_view type, std::string_view name) {
  return "CAST(" + expression + " AS " + std::string(type) + ") AS " + std::string(name);
}

// The step of a window: its outcome's, else the one that follows from the nearest outcome before
// it. Without such an outcome it is what was known when the record was written. As
// Timeline::at().
std::string step_of(std::string_view record, std::string_view optimizer) {
  const std::string r(record);
  const std::string step =
      "coalesce(o.step, (SELECT p.step + (p.fate = 'taken') + (" + r +
      ".window - p.window - 1) FROM outcomes p WHERE p.restart = " + r +
      ".restart AND p.rank = " + r + ".rank AND p.optimizer = " + std::string(optimizer) +
      " AND p.window < " + r + ".window ORDER BY p.window DESC LIMIT 1), " + r + ".step)";
  return column_as(step, "INTEGER", "step");
}

std::string attempt_of() {
  return "coalesce(o.attempt, (SELECT CASE WHEN p.fate <> 'taken' AND r.window = p.window + 1 THEN "
         "p.attempt + 1 ELSE 0 END FROM outcomes p WHERE p.restart = r.restart AND p.rank = r.rank "
         "AND p.optimizer = s.optimizer AND p.window < r.window ORDER BY p.window DESC LIMIT 1), "
         "r.attempt)";
}

std::string outcome_of(std::string_view record, std::string_view optimizer) {
  const std::string r(record);
  return "LEFT JOIN outcomes o ON o.restart = " + r + ".restart AND o.rank = " + r +
         ".rank AND o.optimizer = " + std::string(optimizer) + " AND o.window = " + r + ".window";
}

// Where the view stats finds a field: what the outcome says now, the series, or the row.
template <typename Owner, typename T>
std::string source_of(const Field<Owner, T>& field) {
  if (field.name == "step") return step_of("r", "s.optimizer");
  const auto as_field = [&](const std::string& expression) {
    return column_as(expression, sql_type(cell_type<T>()), field.name);
  };
  if (field.name == "attempt") return as_field(attempt_of());
  if (field.name == "fate") return as_field("coalesce(o.fate, 'unknown')");
  if (field.name == "loss_scale") {
    return as_field("CASE WHEN o.fate IS NULL THEN 1.0 ELSE o.loss_scale END");
  }
  return (std::is_same_v<Owner, Series> ? "s." : "r.") + std::string(field.name);
}

// The columns of trainmon.read(), in its order.
std::string views(const std::vector<std::string>& statistics) {
  std::string columns;
  for_each_field(kWideRow, [&](const auto& field) {
    columns += (columns.empty() ? "" : ", ") + source_of(field);
  });
  return "CREATE VIEW stats AS SELECT " + columns + listed(statistics, "r.") +
         " FROM rows r JOIN series s ON s.id = r.series " + outcome_of("r", "s.optimizer") +
         ";\nCREATE VIEW logged AS SELECT r.restart, r.rank, " + step_of("r", "r.optimizer") +
         ", r.name, r.value FROM scalars r " + outcome_of("r", "r.optimizer") +
         ";\nCREATE VIEW declared AS SELECT r.restart, r.rank, " + step_of("r", "r.optimizer") +
         ", r.optimizer, r.param_group, r.name, r.value, r.type, r.window FROM "
         "declared_values r " +
         outcome_of("r", "r.optimizer") + ";";
}

std::string places(std::size_t count) {
  std::string text = "?";
  for (std::size_t i = 1; i < count; ++i) text += ",?";
  return text;
}

// Makes everything, so that statements can be prepared. Returns the one that adds a row.
std::string make_tables(Database& database, const std::vector<std::string>& statistics) {
  database.run("BEGIN");
  database.run("PRAGMA application_id = " + std::to_string(kSqliteApplicationId));
  database.run("PRAGMA user_version = " + std::to_string(kSqliteFormatVersion));
  database.run(kTables);
  const RowColumns columns = row_columns(statistics);
  database.run("CREATE TABLE rows (" + columns.text + ")");
  database.run(views(statistics));
  database.run("COMMIT");
  return "INSERT INTO rows VALUES (" + places(columns.count) + ")";
}

}  // namespace

RunTables::RunTables(Database& database, const std::vector<std::string>& statistics)
    : RunTables(database, make_tables(database, statistics)) {
  for (const std::string& name : statistics) is_count_.push_back(is_count(name));
}

RunTables::RunTables(Database& database, const std::string& add_row)
    : fact_(database.prepare("INSERT OR REPLACE INTO meta VALUES (?,?)")),
      series_(database.prepare("INSERT OR REPLACE INTO series VALUES (" + places(11) + ")")),
      row_(database.prepare(add_row)),
      outcome_(database.prepare("INSERT OR REPLACE INTO outcomes VALUES (" + places(8) + ")")),
      scalar_(database.prepare("INSERT INTO scalars VALUES (" + places(8) + ")")),
      declared_(database.prepare("INSERT INTO declared_values VALUES (" + places(9) + ")")),
      payload_(database.prepare("INSERT INTO payloads VALUES (" + places(13) + ")")),
      alert_(database.prepare("INSERT INTO alerts VALUES (" + places(15) +
                              ") ON CONFLICT DO UPDATE SET count = max(count, excluded.count)")),
      gap_(database.prepare("INSERT INTO gaps VALUES (" + places(6) + ")")) {}

void RunTables::add_fact(std::string_view name, std::string_view value) {
  fact_.text(name).text(value).run();
}

void RunTables::add_fact(std::string_view name, std::int64_t value) {
  fact_.text(name).integer(value).run();
}

void RunTables::add_series(std::int64_t id, const Series& series) {
  std::vector<std::int64_t> bounds;
  for (const Range& range : series.ranges) {
    bounds.push_back(range.begin);
    bounds.push_back(range.end);
  }
  const std::string ranges = list_text(bounds);
  const std::string shape = list_text(series.full_shape);
  series_.integer(id).text(series.kind).integer(series.chunk).text(series.name);
  series_.text(series.element).integer(series.optimizer).text(dtype_name(series.dtype));
  series_.text(replication_name(series.replication)).text(space_name(series.space));
  series_.text(ranges).text(shape).run();
}

void RunTables::add_row(std::int64_t series, const TableRow& row) {
  row_.integer(series);
  const auto put = [&](auto cell) { row_.cell(cell); };
  for_each_stored_field([&](const auto& field) { put_cell(row.*field.member, put); });
  for (std::size_t i = 0; i < row.values.size(); ++i) row.put_value(i, is_count_[i], put);
  row_.run();
}

void RunTables::add_outcome(const Owner& owner, const Outcome& outcome) {
  outcome_.integer(owner.restart).integer(owner.rank).integer(outcome.optimizer);
  outcome_.integer(outcome.window).integer(outcome.step).integer(outcome.attempt);
  outcome_.text(fate_name(outcome.fate)).real(outcome.loss_scale).run();
}

void RunTables::add_scalar(const Owner& owner, std::int64_t optimizer, std::int64_t step,
                           const Scalar& scalar) {
  scalar_.integer(owner.restart).integer(owner.rank).integer(optimizer).integer(step);
  scalar_.integer(scalar.window).integer(static_cast<std::int64_t>(scalar.seq));
  scalar_.text(scalar.name).real(scalar.value).run();
}

void RunTables::add_declared(const ReadDeclared& declared) {
  const DeclaredValue& value = declared.value;
  declared_.integer(declared.restart).integer(declared.rank).integer(declared.optimizer);
  declared_.integer(declared.group).integer(declared.step).integer(declared.window);
  declared_.text(value.name).text(declared_type_name(value.type));
  if (value.type == DeclaredValue::Type::number) {
    declared_.real(value.number);
  } else if (value.type == DeclaredValue::Type::text) {
    declared_.text(value.text);
  } else {
    declared_.null();
  }
  declared_.run();
}

void RunTables::add_payload(const Owner& owner, std::int64_t series, const Outcome& place,
                            std::int64_t micro_step, const Payload& payload) {
  const RowKey& key = payload.key;
  const std::string cell = payload_cell(payload);
  payload_.integer(series).integer(owner.restart).integer(owner.rank).integer(place.step);
  payload_.integer(place.attempt).integer(micro_step).integer(key.call);
  payload_.integer(static_cast<std::int64_t>(key.seq)).integer(key.flags).integer(key.window);
  payload_.integer(key.accum).text(payload_type_name(payload.type)).text(cell).run();
}

void RunTables::add_alert(const Owner& owner, std::int64_t series, const Alert& alert) {
  const RowKey& key = alert.key;
  alert_.integer(owner.restart).integer(owner.rank).text(alert.rule).integer(series);
  alert_.integer(alert.step).integer(key.window).integer(key.accum).integer(key.call);
  alert_.integer(static_cast<std::int64_t>(key.seq)).integer(key.flags).text(alert.stat);
  alert_.real(alert.value).real(alert.expected).integer(alert.count).text(alert.message).run();
}

void RunTables::add_gap(const Owner& owner, const Gap& gap) {
  gap_.integer(owner.restart).integer(owner.rank).text(gap.reason).integer(gap.rows);
  gap_.integer(static_cast<std::int64_t>(gap.first_seq));
  gap_.integer(static_cast<std::int64_t>(gap.last_seq)).run();
}

}  // namespace trainmon
