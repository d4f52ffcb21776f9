// The mirror of src/sinks/log_encode.cpp.
#include "read/log_decode.h"

#include <algorithm>

#include "read/log_columns.h"

namespace trainmon {
namespace {

using namespace log_format;

template <typename Enum>
bool read_enum(ByteReader& reader, Enum& value, Enum last) {
  const auto number = reader.fixed<std::uint8_t>();
  value = static_cast<Enum>(number);
  return reader.ok() && number <= static_cast<std::uint8_t>(last);
}

std::int32_t small(std::int64_t value) {
  return static_cast<std::int32_t>(value);
}

std::optional<Series> read_series(ByteReader& reader) {
  Series series;
  series.kind = reader.text();
  series.chunk = small(reader.signed_varint());
  series.name = reader.text();
  series.element = reader.text();
  series.optimizer = small(reader.signed_varint());
  if (!read_enum(reader, series.dtype, DType::bool8)) return std::nullopt;
  if (!read_enum(reader, series.space, Space::flat)) return std::nullopt;
  for (std::uint64_t n = reader.varint(); n > 0 && reader.ok(); --n) {
    const std::int64_t begin = reader.signed_varint();
    series.ranges.push_back({begin, reader.signed_varint()});
  }
  for (std::uint64_t n = reader.varint(); n > 0 && reader.ok(); --n) {
    series.full_shape.push_back(reader.signed_varint());
  }
  if (!read_enum(reader, series.replication, Replication::independent)) return std::nullopt;
  return reader.ok() ? std::optional(series) : std::nullopt;
}

bool read_rows(std::string_view bytes, std::vector<Row>& rows, FrameBounds& bounds,
               std::string& why, Columns columns, const WantedSeries& wanted) {
  ByteReader reader(bytes);
  const std::uint64_t count = reader.varint();
  // A row takes a byte at least (seq is never constant), so this bounds what is allocated.
  if (count > reader.left()) {
    why = "more rows than bytes";
    return false;
  }
  if (!bounds.takes_records(count)) {
    why = kTooManyRecords;
    return false;
  }
  RowReader row_reader;
  for (std::uint64_t left = reader.varint(); left > 0 && reader.ok(); --left) {
    const auto id = reader.fixed<std::uint8_t>();
    const auto encoding = static_cast<Encoding>(reader.fixed<std::uint8_t>());
    const std::string_view data = reader.text();
    const log_format::ColumnDefinition* known = known_column(id);
    if (!reader.ok() || known == nullptr || !columns.has(known->column)) continue;
    row_reader.add({*known, encoding, data});
  }
  if (!reader.ok()) {
    why = "the rows are cut short";
    return false;
  }
  if (!row_reader.read(count, wanted, rows, why)) return false;
  const ColumnDefinition* const faulty = row_reader.not_at_end();
  if (faulty != nullptr) why = column_fault(*faulty);
  return faulty == nullptr;
}

RowKey read_key(ByteReader& reader) {
  RowKey key;
  key.series = static_cast<SeriesId>(reader.varint());
  key.flags = static_cast<std::uint32_t>(reader.varint());
  key.window = reader.signed_varint();
  key.accum = small(reader.signed_varint());
  key.call = small(reader.signed_varint());
  key.seq = reader.varint();
  return key;
}

template <typename Record, typename Take>
bool read_records(std::string_view bytes, std::vector<Record>& records, FrameBounds& bounds,
                  std::string& why, const Take& take) {
  ByteReader reader(bytes);
  for (std::uint64_t count = reader.varint(); count > 0 && reader.ok(); --count) {
    ByteReader fields(reader.text());
    Record record;
    const bool is_known = take(fields, record);
    if (!reader.ok() || !fields.ok() || !is_known) return false;
    if (!bounds.takes_records(1)) {
      why = kTooManyRecords;
      return false;
    }
    records.push_back(std::move(record));
  }
  return reader.ok();
}

bool take_outcome(ByteReader& r, Outcome& o) {
  o.optimizer = small(r.signed_varint());
  o.window = r.signed_varint();
  o.step = r.signed_varint();
  o.attempt = small(r.signed_varint());
  if (!read_enum(r, o.fate, Fate::unknown)) return false;
  o.loss_scale = r.fixed<double>();
  return true;
}

bool take_scalar(ByteReader& r, Scalar& s) {
  s.name = r.text();
  s.window = r.signed_varint();
  s.seq = r.varint();
  s.value = r.fixed<double>();
  return true;
}

bool take_payload(ByteReader& r, Payload& p, bool has_bytes) {
  p.type = static_cast<PayloadType>(r.fixed<std::uint8_t>());
  p.key = read_key(r);
  const std::string_view bytes = r.text();
  if (!has_bytes) return true;
  const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
  p.bytes.assign(data, data + bytes.size());
  return true;
}

bool take_alert(ByteReader& r, Alert& a) {
  a.rule = r.text();
  a.key = read_key(r);
  a.step = r.signed_varint();
  a.message = r.text();
  a.count = r.signed_varint();
  if (r.left() == 0) return true;  // as written before alerts had a statistic
  a.stat = r.text();
  a.value = r.fixed<double>();
  a.expected = r.fixed<double>();
  return true;
}

bool take_gap(ByteReader& r, Gap& g) {
  g.reason = r.text();
  g.rows = r.signed_varint();
  g.first_seq = r.varint();
  g.last_seq = r.varint();
  return true;
}

bool take_declared(ByteReader& r, Declared& d, FrameBounds& bounds, std::string& why) {
  d.optimizer = small(r.signed_varint());
  d.group = small(r.signed_varint());
  d.window = r.signed_varint();
  d.seq = r.varint();
  for (std::uint64_t count = r.varint(); count > 0 && r.ok(); --count) {
    if (!bounds.takes_records(1)) {
      why = kTooManyRecords;
      return false;
    }
    DeclaredValue& value = d.values.emplace_back();
    value.name = r.text();
    if (!read_enum(r, value.type, DeclaredValue::Type::unknown)) return false;
    if (value.type == DeclaredValue::Type::number) value.number = r.fixed<double>();
    if (value.type == DeclaredValue::Type::text) value.text = r.text();
  }
  return true;
}

bool take_shape(ByteReader& r, Shape& shape, FrameBounds& bounds, std::string& why) {
  const std::uint64_t dimensions = r.varint();
  if (dimensions > kMaxDimensions) return false;
  if (!bounds.takes_records(dimensions)) {
    why = kTooManyRecords;
    return false;
  }
  shape.resize(dimensions);
  for (std::int64_t& size : shape) {
    size = static_cast<std::int64_t>(r.varint());
    if (size < 0) return false;
  }
  return true;
}

bool read_checks(std::string_view bytes, std::vector<RowCheck>& checks, FrameBounds& bounds,
                 std::string& why) {
  std::uint64_t seq = 0;
  return read_records(bytes, checks, bounds, why, [&](ByteReader& r, RowCheck& c) {
    c.seq = seq += r.varint();
    c.fingerprint = r.fixed<std::uint64_t>();
    const std::uint64_t sums = r.varint();
    c.has_sketch = sums > 0;
    if (c.has_sketch && sums != c.sketch.size()) return false;
    for (std::uint64_t i = 0; i < sums; ++i) c.sketch[i] = r.fixed<float>();
    return true;
  });
}

bool read_samples(std::string_view bytes, std::vector<RowSample>& samples, FrameBounds& bounds,
                  std::string& why) {
  std::uint64_t seq = 0;
  return read_records(bytes, samples, bounds, why, [&](ByteReader& r, RowSample& s) {
    s.seq = seq += r.varint();
    s.elements = r.signed_varint();
    for (double* const value : {&s.sum_error, &s.sum_sq_error, &s.min, &s.max}) {
      *value = r.fixed<double>();
    }
    return true;
  });
}

// Checks or samples. They count as records, whether they are decoded or not.
bool skip_records(std::string_view bytes, FrameBounds& bounds, std::string& why) {
  ByteReader reader(bytes);
  const std::uint64_t count = reader.varint();
  if (!reader.ok() || count > reader.left()) return false;
  if (!bounds.takes_records(count)) why = kTooManyRecords;
  return why.empty();
}

bool read_section(Section section, std::string_view bytes, RecordBatch& batch, FrameBounds& bounds,
                  std::string& why, Columns columns, const WantedSeries& wanted) {
  switch (section) {
    case Section::rows:
      return read_rows(bytes, batch.rows, bounds, why, columns, wanted);
    case Section::outcomes:
      return read_records(bytes, batch.outcomes, bounds, why, take_outcome);
    case Section::scalars:
      return read_records(bytes, batch.scalars, bounds, why, take_scalar);
    case Section::payloads:
      return read_records(bytes, batch.payloads, bounds, why, [&](ByteReader& r, Payload& p) {
        return take_payload(r, p, columns.has_payload_bytes());
      });
    case Section::alerts:
      return read_records(bytes, batch.alerts, bounds, why, take_alert);
    case Section::gaps:
      return read_records(bytes, batch.gaps, bounds, why, take_gap);
    case Section::declared:
      return read_records(bytes, batch.declared, bounds, why, [&](ByteReader& r, Declared& d) {
        return take_declared(r, d, bounds, why);
      });
    case Section::shapes:
      return read_records(bytes, batch.shapes, bounds, why, [&](ByteReader& r, Shape& shape) {
        return take_shape(r, shape, bounds, why);
      });
    case Section::checks:
      return columns.has_checks() ? read_checks(bytes, batch.checks, bounds, why)
                                  : skip_records(bytes, bounds, why);
    case Section::samples:
      return columns.has_samples() ? read_samples(bytes, batch.samples, bounds, why)
                                   : skip_records(bytes, bounds, why);
  }
  return true;  // a later version's
}

}  // namespace

std::optional<SegmentInfo> decode_segment(std::string_view payload, std::string& why) {
  ByteReader reader(payload);
  SegmentInfo info;
  info.start.number = small(reader.signed_varint());
  info.start.previous = small(reader.signed_varint());
  info.start.previous_bytes = reader.signed_varint();
  info.rank = small(reader.signed_varint());
  info.world_size = small(reader.signed_varint());
  info.restart = small(reader.signed_varint());
  info.eps = reader.fixed<double>();
  info.run_id = reader.text();
  for (std::uint64_t columns = reader.varint(); columns > 0 && reader.ok(); --columns) {
    reader.fixed<std::uint16_t>();
    reader.text();
  }
  if (reader.ok() && reader.left() > 0) {
    info.start.compacted_bytes = reader.fixed<std::int64_t>();
    info.start.written_bytes = reader.fixed<std::int64_t>();
  }
  if (reader.ok()) return info;
  why = "the segment frame cannot be decoded";
  return std::nullopt;
}

std::string misplaced_text(const SegmentInfo& info, int rank, int restart, int number) {
  if (info.rank == rank && info.restart == restart && info.start.number == number) return "";
  return "this is segment " + std::to_string(info.start.number) + " of rank " +
         std::to_string(info.rank) + ", restart " + std::to_string(info.restart) +
         ": it does not belong here and is not used";
}

bool decode_series(std::string_view payload, std::map<SeriesId, Series>& series,
                   FrameBounds& bounds, std::string& why) {
  ByteReader reader(payload);
  for (std::uint64_t count = reader.varint(); count > 0 && reader.ok(); --count) {
    ByteReader fields(reader.text());
    const auto id = static_cast<SeriesId>(fields.varint());
    const std::optional<Series> definition = read_series(fields);
    if (!definition) {
      why = "the definition of series " + std::to_string(id) + " cannot be decoded";
      return false;
    }
    const auto [known, is_new] = series.emplace(id, *definition);
    if (is_new && !bounds.takes_records(1)) {
      series.erase(known);
      why = kTooManyRecords;
      return false;
    }
    if (!is_new && !(known->second == *definition)) {
      why = "series " + std::to_string(id) + " is defined twice, differently";
      return false;
    }
  }
  if (!reader.ok()) why = "the series frame is cut short";
  return reader.ok();
}

bool decode_batch(std::string_view payload, RecordBatch& batch, FrameBounds& bounds,
                  std::string& why, Columns columns, const WantedSeries& wanted) {
  ByteReader reader(payload);
  batch.rows.clear();
  batch.checks.clear();
  batch.samples.clear();
  batch.outcomes.clear();
  batch.scalars.clear();
  batch.payloads.clear();
  batch.declared.clear();
  batch.alerts.clear();
  batch.gaps.clear();
  batch.shapes.clear();
  batch.number = reader.varint();
  batch.moment = static_cast<Moment>(reader.fixed<std::uint8_t>());
  batch.time_ns = reader.fixed<std::int64_t>();
  batch.eps = reader.fixed<double>();
  while (reader.ok() && reader.left() > 0) {
    const auto section = static_cast<Section>(reader.fixed<std::uint8_t>());
    const std::string_view bytes = reader.text();
    if (reader.ok() && !read_section(section, bytes, batch, bounds, why, columns, wanted)) {
      if (why.empty()) {
        why = "section " + std::to_string(static_cast<int>(section)) + " cannot be decoded";
      }
      return false;
    }
  }
  if (!reader.ok()) {
    why = "the batch is cut short";
    return false;
  }
  return has_listed_shapes(batch, why);
}

bool has_listed_shapes(const RecordBatch& batch, std::string& why) {
  const bool are_listed = std::ranges::all_of(
      batch.rows, [&](const Row& row) { return row.shape < kFirstShape + batch.shapes.size(); });
  if (!are_listed) why = "a row has a shape that the batch does not list";
  return are_listed;
}

std::optional<RecordBatch> decode_batch(std::string_view payload, FrameBounds& bounds,
                                        std::string& why) {
  RecordBatch batch;
  if (!decode_batch(payload, batch, bounds, why, Columns::all())) return std::nullopt;
  return batch;
}

}  // namespace trainmon
