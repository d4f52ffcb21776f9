#include "sources/sqlite_facts.h"

#include <cmath>

#include "read/declared_order.h"
#include "sources/payload_cells.h"
#include "sources/row_members.h"

namespace trainmon {
namespace {

std::int32_t small(const SqliteAnswer& answer, int at) {
  return static_cast<std::int32_t>(answer.integer(at));
}

// NULL is NaN.
double real_of(const SqliteAnswer& answer, int at) {
  return answer.is_null(at) ? std::nan("") : answer.real(at);
}

}  // namespace

std::string series_columns() {
  std::string text;
  for_each_field_of<Series>(kWideRow, [&](const auto& field) {
    text += (text.empty() ? "s." : ", s.") + std::string(field.name);
  });
  return text;
}

Series series_from(const SqliteAnswer& answer, int first) {
  Series series;
  KeptShapes none;  // a series has no shape here
  SqliteMembers members(answer, first);
  for_each_field_of<Series>(kWideRow,
                            [&](const auto& field) { members.read(series.*field.member, none); });
  return series;
}

void SqliteFacts::add(sqlite3* database, const std::filesystem::path& file) {
  SqliteAnswer scalars(database, "SELECT restart, rank, step, name, value FROM logged", file);
  while (scalars.next()) {
    ReadScalar scalar{small(scalars, 0), small(scalars, 1), scalars.integer(2),
                      std::string(scalars.text(3)), real_of(scalars, 4)};
    if (filter_.takes_step(scalar.step) && filter_.takes_rank(scalar.rank)) {
      rows_.scalars.push_back(std::move(scalar));
    }
  }
  add_declared(database, file);
  // Repeats are joined in the table.
  SeriesIndex series;
  for (Series& known : rows_.series) series.add(known);
  SqliteAnswer alerts(database,
                      "SELECT a.restart, a.rank, a.rule, a.step, a.window, a.accum, a.call, a.seq, "
                      "a.flags, a.stat, a.value, a.expected, a.count, a.message, " +
                          series_columns() + " FROM alerts a JOIN series s ON s.id = a.series",
                      file);
  while (alerts.next()) {
    ReadAlert out;
    out.restart = small(alerts, 0);
    out.rank = small(alerts, 1);
    if (!filter_.takes_rank(out.rank)) continue;
    Alert& alert = out.alert;
    alert.rule = alerts.text(2);
    alert.step = alerts.integer(3);
    alert.key.window = alerts.integer(4);
    alert.key.accum = small(alerts, 5);
    alert.key.call = small(alerts, 6);
    alert.key.seq = static_cast<std::uint64_t>(alerts.integer(7));
    alert.key.flags = static_cast<std::uint32_t>(alerts.integer(8));
    alert.stat = alerts.text(9);
    alert.value = real_of(alerts, 10);
    alert.expected = real_of(alerts, 11);
    alert.count = alerts.integer(12);
    alert.message = alerts.text(13);
    alert.key.series = series.add(series_from(alerts, 14));
    rows_.alerts.push_back(std::move(out));
  }
  rows_.series = series.take();
  SqliteAnswer gaps(database, "SELECT restart, rank, reason, rows, first_seq, last_seq FROM gaps",
                    file);
  while (gaps.next()) {
    ReadGap gap{small(gaps, 0), small(gaps, 1), {}};
    gap.gap = {std::string(gaps.text(2)), gaps.integer(3),
               static_cast<std::uint64_t>(gaps.integer(4)),
               static_cast<std::uint64_t>(gaps.integer(5))};
    if (filter_.takes_rank(gap.rank)) rows_.gaps.push_back(std::move(gap));
  }
}

// Databases of earlier versions have none.
void SqliteFacts::add_declared(sqlite3* database, const std::filesystem::path& file) {
  using Type = DeclaredValue::Type;
  SqliteAnswer known(database, "SELECT 1 FROM sqlite_master WHERE name = 'declared'", file);
  if (!known.next()) return;
  SqliteAnswer answer(database,
                      "SELECT restart, rank, step, optimizer, param_group, window, name, type, "
                      "value FROM declared",
                      file);
  constexpr int kValue = 8;
  while (answer.next()) {
    ReadDeclared out{small(answer, 0),
                     small(answer, 1),
                     answer.integer(2),
                     small(answer, 3),
                     small(answer, 4),
                     answer.integer(5),
                     {}};
    if (!filter_.takes_rank(out.rank)) continue;
    DeclaredValue& value = out.value;
    value.name = answer.text(6);
    value.type =
        enum_from_name(answer.text(7), Type::unknown, declared_type_name).value_or(Type::unknown);
    if (value.type == Type::text) value.text = answer.text(kValue);
    if (value.type == Type::number) value.number = real_of(answer, kValue);
    rows_.declared.push_back(std::move(out));
  }
}

void SqliteFacts::finish(const ReadOptions& options, const Restarts& restarts) {
  std::erase_if(rows_.scalars, [&](const ReadScalar& s) {
    return !restarts.is_newest(s.rank, 0, s.step, s.restart);
  });
  std::erase_if(rows_.declared, [&](const ReadDeclared& d) {
    return !restarts.is_newest(d.rank, d.optimizer, d.step, d.restart);
  });
  order_declared(rows_.declared, options);
}

void SqliteFacts::read_payloads(sqlite3* database, const std::filesystem::path& file,
                                const Restarts& restarts, const Source::UsePayload& use,
                                RowAccount& account) {
  // The step as rows have it: of the outcome with the same window, where there is one.
  SqliteAnswer answer(
      database,
      "SELECT p.restart, p.rank, coalesce(o.step, p.step), coalesce(o.attempt, p.attempt), o.fate, "
      "p.call, p.seq, p.flags, p.window, p.accum, p.type, p.value, " +
          series_columns() +
          " FROM payloads p JOIN series s ON s.id = p.series LEFT JOIN outcomes o ON "
          "o.restart = p.restart AND o.rank = p.rank AND o.optimizer = s.optimizer AND "
          "o.window = p.window",
      file);
  while (answer.next()) {
    ReadPayload out;
    out.restart = small(answer, 0);
    out.rank = small(answer, 1);
    out.step = answer.integer(2);
    out.attempt = small(answer, 3);
    out.fate = enum_from_name(answer.text(4), Fate::unknown, fate_name).value_or(Fate::unknown);
    const Series series = series_from(answer, 12);
    if (!filter_.takes_rank(out.rank) || !filter_.takes(series) || !filter_.takes_step(out.step) ||
        !restarts.is_newest(out.rank, series.optimizer, out.step, out.restart)) {
      continue;
    }
    std::optional<Payload> payload = payload_from_cell(answer.text(10), answer.text(11));
    if (!payload) {
      account.reject({file, 0, 0,
                      "payload with seq " + std::to_string(answer.integer(6)) +
                          ": its value is no " + printable(answer.text(10))});
      continue;
    }
    out.payload = std::move(*payload);
    RowKey& key = out.payload.key;
    key.call = small(answer, 5);
    key.seq = static_cast<std::uint64_t>(answer.integer(6));
    key.flags = static_cast<std::uint32_t>(answer.integer(7));
    key.window = answer.integer(8);
    key.accum = small(answer, 9);
    use(payload_series_.add(series), out);
  }
}

}  // namespace trainmon
