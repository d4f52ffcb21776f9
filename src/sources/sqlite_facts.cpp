#include "sources/sqlite_facts.h"

#include "read/declared_order.h"
#include "sources/payload_cells.h"
#include "sources/row_members.h"

namespace trainmon {
namespace {

constexpr const char* kNoSeries = "its series is not in the table series";

// Whether a record is sound. One that is not is told, but counts as no row.
bool is_sound(const std::string& fault, const std::string& what, const std::filesystem::path& file,
              RowAccount& account) {
  if (!fault.empty()) account.reject({file, 0, 0, what + ": " + fault});
  return fault.empty();
}

}  // namespace

std::string series_columns() {
  std::string text;
  for_each_field_of<Series>(kWideRow, [&](const auto& field) {
    text += (text.empty() ? "s." : ", s.") + std::string(field.name);
  });
  return text;
}

Series series_from(const SqliteAnswer& answer, int first, std::string& fault) {
  Series series;
  KeptShapes none;  // a series has no shape here
  SqliteMembers members(answer, first);
  for_each_field_of<Series>(kWideRow,
                            [&](const auto& field) { members.read(series.*field.member, none); });
  if (fault.empty()) fault = members.fault();
  return series;
}

void SqliteFacts::add(sqlite3* database, const std::filesystem::path& file, RowAccount& account) {
  add_scalars(database, file, account);
  add_declared(database, file, account);
  add_alerts(database, file, account);
  add_gaps(database, file, account);
}

void SqliteFacts::add_scalars(sqlite3* database, const std::filesystem::path& file,
                              RowAccount& account) {
  SqliteAnswer answer(database, "SELECT restart, rank, step, name, value FROM logged", file);
  while (answer.next()) {
    ReadScalar scalar;
    SqliteMembers cells(answer, 0);
    cells.read_all(scalar.restart, scalar.rank, scalar.step, scalar.name, scalar.value);
    const std::string what =
        "scalar " + printable(scalar.name) + " of step " + std::to_string(scalar.step);
    if (!is_sound(cells.fault(), what, file, account)) continue;
    if (filter_.takes_step(scalar.step) && filter_.takes_rank(scalar.rank)) {
      rows_.scalars.push_back(std::move(scalar));
    }
  }
}

// Databases of earlier versions have none.
void SqliteFacts::add_declared(sqlite3* database, const std::filesystem::path& file,
                               RowAccount& account) {
  using Type = DeclaredValue::Type;
  SqliteAnswer known(database, "SELECT 1 FROM sqlite_master WHERE name = 'declared'", file);
  if (!known.next()) return;
  SqliteAnswer answer(database,
                      "SELECT restart, rank, step, optimizer, param_group, window, name, type, "
                      "value FROM declared",
                      file);
  constexpr int kType = 7, kValue = 8;
  while (answer.next()) {
    ReadDeclared out;
    DeclaredValue& value = out.value;
    value.type = Type::unknown;
    SqliteMembers cells(answer, 0);
    cells.read_all(out.restart, out.rank, out.step, out.optimizer, out.group, out.window,
                   value.name);
    std::string fault = cells.fault();
    if (!set_enumerator(value.type, answer.text(kType), Type::unknown, declared_type_name)) {
      fault = "type '" + printable(answer.text(kType)) + "' is none";
    }
    if (value.type == Type::text) value.text = answer.text(kValue);
    if (value.type == Type::number) {
      SqliteMembers number(answer, kValue);
      number.read_all(value.number);
      if (fault.empty()) fault = number.fault();
    }
    const std::string what =
        "declared value " + printable(value.name) + " of step " + std::to_string(out.step);
    if (!is_sound(fault, what, file, account) || !filter_.takes_rank(out.rank)) continue;
    rows_.declared.push_back(std::move(out));
  }
}

void SqliteFacts::add_alerts(sqlite3* database, const std::filesystem::path& file,
                             RowAccount& account) {
  // Repeats are joined in the table.
  SeriesIndex series;
  for (Series& known : rows_.series) series.add(known);
  SqliteAnswer answer(database,
                      "SELECT a.restart, a.rank, a.rule, a.step, a.window, a.accum, a.call, a.seq, "
                      "a.flags, a.stat, a.value, a.expected, a.count, a.message, s.id, " +
                          series_columns() + " FROM alerts a LEFT JOIN series s ON s.id = a.series",
                      file);
  constexpr int kSeries = 14;
  while (answer.next()) {
    ReadAlert out;
    Alert& alert = out.alert;
    SqliteMembers cells(answer, 0);
    cells.read_all(out.restart, out.rank, alert.rule, alert.step, alert.key.window, alert.key.accum,
                   alert.key.call, alert.key.seq, alert.key.flags, alert.stat, alert.value,
                   alert.expected, alert.count, alert.message);
    std::string fault = answer.is_null(kSeries) ? kNoSeries : cells.fault();
    const Series of = series_from(answer, kSeries + 1, fault);
    const std::string what =
        "alert " + printable(alert.rule) + " with seq " + std::to_string(alert.key.seq);
    if (!is_sound(fault, what, file, account) || !filter_.takes_rank(out.rank)) continue;
    alert.key.series = series.add(of);
    rows_.alerts.push_back(std::move(out));
  }
  rows_.series = series.take();
}

void SqliteFacts::add_gaps(sqlite3* database, const std::filesystem::path& file,
                           RowAccount& account) {
  SqliteAnswer answer(database, "SELECT restart, rank, reason, rows, first_seq, last_seq FROM gaps",
                      file);
  while (answer.next()) {
    ReadGap out;
    Gap& gap = out.gap;
    SqliteMembers cells(answer, 0);
    cells.read_all(out.restart, out.rank, gap.reason, gap.rows, gap.first_seq, gap.last_seq);
    if (!is_sound(cells.fault(), "gap " + printable(gap.reason), file, account)) continue;
    if (filter_.takes_rank(out.rank)) rows_.gaps.push_back(std::move(out));
  }
}

void SqliteFacts::finish(const ReadOptions& options, const Restarts& restarts) {
  std::erase_if(rows_.scalars, [&](const ReadScalar& s) {
    return !restarts.is_newest(s.rank, 0, s.step, s.restart);
  });
  order_declared(rows_.declared, restarts, options);
}

void SqliteFacts::read_payloads(sqlite3* database, const std::filesystem::path& file,
                                const Restarts& restarts, const Source::UsePayload& use,
                                RowAccount& account) {
  // The step as rows have it: of the outcome with the same window, where there is one.
  SqliteAnswer answer(
      database,
      "SELECT p.restart, p.rank, coalesce(o.step, p.step), coalesce(o.attempt, p.attempt), "
      "p.call, p.seq, p.flags, p.window, p.accum, o.fate, p.type, p.value, s.id, " +
          series_columns() +
          " FROM payloads p LEFT JOIN series s ON s.id = p.series LEFT JOIN outcomes o ON "
          "o.restart = p.restart AND o.rank = p.rank AND o.optimizer = s.optimizer AND "
          "o.window = p.window",
      file);
  constexpr int kType = 10, kValue = 11, kSeries = 12;
  while (answer.next()) {
    ReadPayload out;
    RowKey key;
    SqliteMembers cells(answer, 0);
    cells.read_all(out.restart, out.rank, out.step, out.attempt, key.call, key.seq, key.flags,
                   key.window, key.accum, out.fate);
    std::string fault = answer.is_null(kSeries) ? kNoSeries : cells.fault();
    const Series series = series_from(answer, kSeries + 1, fault);
    const std::string what = "payload with seq " + std::to_string(key.seq);
    if (!is_sound(fault, what, file, account)) continue;
    if (!filter_.takes_rank(out.rank) || !filter_.takes(series) || !filter_.takes_step(out.step) ||
        !restarts.is_newest(out.rank, series.optimizer, out.step, out.restart)) {
      continue;
    }
    std::optional<Payload> payload = payload_from_cell(answer.text(kType), answer.text(kValue));
    if (!payload) fault = "its value is no " + printable(answer.text(kType));
    if (!is_sound(fault, what, file, account)) continue;
    out.payload = std::move(*payload);
    out.payload.key = key;
    use(payload_series_.add(series), out);
  }
}

}  // namespace trainmon
