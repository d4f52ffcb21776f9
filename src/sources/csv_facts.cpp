#include "sources/csv_facts.h"

#include <cmath>

#include "base/text.h"
#include "read/declared_order.h"
#include "sources/payload_cells.h"

namespace trainmon {
namespace {

// Columns that every record's key has.
RowKey key_of(const CsvColumns& columns, const CsvRecords& records, std::string& fault) {
  RowKey key;
  key.window = columns.integer(records, "window", fault);
  key.accum = columns.small(records, "accum", fault);
  key.call = columns.small(records, "call", fault);
  key.seq = static_cast<std::uint64_t>(columns.integer(records, "seq", fault));
  key.flags = static_cast<std::uint32_t>(columns.integer(records, "flags", fault));
  return key;
}

// Whose a record is: by its columns, else the directory's.
template <typename Record>
void take_owner(const CsvColumns& columns, const CsvRecords& records, const CsvPlace& place,
                Record& record, std::string& fault) {
  record.restart = columns.small(records, "restart", fault, place.restart);
  record.rank = columns.small(records, "rank", fault, place.rank);
}

}  // namespace

void CsvFacts::add(const CsvPlace& place, RowAccount& account) {
  add_scalars(place, account);
  add_declared(place, account);
  add_alerts(place, account);
  add_gaps(place, account);
}

void CsvFacts::add_scalars(const CsvPlace& place, RowAccount& account) {
  const auto use = [&](const CsvColumns& columns, const CsvRecords& records) {
    std::string fault;
    ReadScalar scalar;
    take_owner(columns, records, place, scalar, fault);
    scalar.step = columns.integer(records, "step", fault);
    if (place.timeline != nullptr && columns.at("window") >= 0) {
      const std::int64_t window = columns.integer(records, "window", fault);
      scalar.step = place.timeline->at(place.clock, window).step;
    }
    scalar.name = columns.text(records, "name");
    scalar.value = columns.number(records, "value", fault);
    if (fault.empty() && filter_.takes_step(scalar.step) && filter_.takes_rank(scalar.rank) &&
        restarts_.is_newest(scalar.rank, place.clock, scalar.step, scalar.restart)) {
      rows_.scalars.push_back(std::move(scalar));
    }
    return fault;
  };
  for_each_fact(place.directory / "scalars.csv", account, use);
}

void CsvFacts::add_declared(const CsvPlace& place, RowAccount& account) {
  using Type = DeclaredValue::Type;
  const auto use = [&](const CsvColumns& columns, const CsvRecords& records) {
    std::string fault;
    ReadDeclared out;
    take_owner(columns, records, place, out, fault);
    out.optimizer = columns.small(records, "optimizer", fault);
    out.group = columns.small(records, "param_group", fault);
    out.step = columns.integer(records, "step", fault);
    out.window = columns.integer(records, "window", fault, -1);
    if (place.timeline != nullptr && out.window >= 0) {
      out.step = place.timeline->at(out.optimizer, out.window).step;
    }
    DeclaredValue& value = out.value;
    value.name = columns.text(records, "name");
    const std::string_view cell = columns.text(records, "value");
    if (columns.at("type") < 0) {  // as conversions wrote it once
      value.type = parse_number(cell, value.number) ? Type::number : Type::text;
    } else {
      columns.enumerator(records, "type", Type::unknown, declared_type_name, value.type, fault);
    }
    if (value.type == Type::number) value.number = columns.number(records, "value", fault);
    if (value.type == Type::text) value.text = cell;
    if (fault.empty() && filter_.takes_rank(out.rank)) rows_.declared.push_back(std::move(out));
    return fault;
  };
  for_each_fact(place.directory / "declared.csv", account, use);
}

void CsvFacts::add_alerts(const CsvPlace& place, RowAccount& account) {
  const auto use = [&](const CsvColumns& columns, const CsvRecords& records) {
    std::string fault;
    ReadAlert out;
    take_owner(columns, records, place, out, fault);
    Alert& alert = out.alert;
    const Series series = columns.series(records, fault);
    alert.key = key_of(columns, records, fault);
    alert.rule = columns.text(records, "rule");
    alert.step = columns.integer(records, "step", fault, -1);
    alert.stat = columns.text(records, "stat");
    alert.value = columns.number(records, "value", fault, std::nan(""));
    alert.expected = columns.number(records, "expected", fault, std::nan(""));
    alert.count = columns.integer(records, "count", fault, 1);
    alert.message = columns.text(records, "message");
    if (!fault.empty() || !filter_.takes_rank(out.rank)) return fault;
    alert.key.series = series_.add(series);
    alerts_.add(std::move(out), rows_.alerts);
    return fault;
  };
  for_each_fact(place.directory / "alerts.csv", account, use);
}

void CsvFacts::add_gaps(const CsvPlace& place, RowAccount& account) {
  const auto use = [&](const CsvColumns& columns, const CsvRecords& records) {
    std::string fault;
    ReadGap out;
    take_owner(columns, records, place, out, fault);
    out.gap.reason = columns.text(records, "reason");
    out.gap.rows = columns.integer(records, "rows", fault);
    out.gap.first_seq = static_cast<std::uint64_t>(columns.integer(records, "first_seq", fault));
    out.gap.last_seq = static_cast<std::uint64_t>(columns.integer(records, "last_seq", fault));
    if (fault.empty() && filter_.takes_rank(out.rank)) rows_.gaps.push_back(std::move(out));
    return fault;
  };
  for_each_fact(place.directory / "gaps.csv", account, use);
}

void CsvFacts::read_payloads(const CsvPlace& place, const Source::UsePayload& use_payload,
                             RowAccount& account) {
  const auto use = [&](const CsvColumns& columns, const CsvRecords& records) -> std::string {
    std::string fault;
    ReadPayload out;
    take_owner(columns, records, place, out, fault);
    const Series series = columns.series(records, fault);
    out.step = columns.integer(records, "step", fault);
    out.attempt = columns.small(records, "attempt", fault);
    const RowKey key = key_of(columns, records, fault);
    if (place.timeline != nullptr && columns.at("window") >= 0) {
      const Outcome outcome = place.timeline->at(series.optimizer, key.window);
      out.step = outcome.step;
      out.attempt = outcome.attempt;
      out.fate = outcome.fate;
    }
    const std::string_view type = columns.text(records, "type");
    std::optional<Payload> payload = payload_from_cell(type, columns.text(records, "value"));
    if (!payload && fault.empty()) fault = "its value is no " + printable(type);
    if (!fault.empty()) return fault;
    if (!filter_.takes_rank(out.rank) || !filter_.takes(series) || !filter_.takes_step(out.step) ||
        !restarts_.is_newest(out.rank, series.optimizer, out.step, out.restart)) {
      return {};
    }
    out.payload = std::move(*payload);
    out.payload.key = key;
    use_payload(payload_series_.add(series), out);
    return {};
  };
  for_each_fact(place.directory / "payloads.csv", account, use);
}

void CsvFacts::finish() {
  rows_.series = series_.take();
  order_declared(rows_.declared, restarts_, options_);
}

}  // namespace trainmon
