// Each column takes the smallest encoding that gives back exactly the same values.
#include "sinks/log_encode.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>

#include "base/crc32c.h"
#include "sinks/compress.h"
#include "sinks/log_columns.h"
#include "trainmon/error.h"

namespace trainmon::log_format {
namespace {

// The numbers of these enumerations are in files: they may grow, never move.
static_assert(static_cast<int>(DType::float64) == 0 && static_cast<int>(DType::float8_e5m2) == 5 &&
              static_cast<int>(DType::int64) == 6 && static_cast<int>(DType::uint64) == 10 &&
              static_cast<int>(DType::bool8) == 14);
static_assert(static_cast<int>(Space::flat) == 2 && static_cast<int>(Replication::disjoint) == 1 &&
              static_cast<int>(Replication::independent) == 3);
static_assert(static_cast<int>(Fate::skipped) == 1 && static_cast<int>(Fate::unknown) == 2);
static_assert(static_cast<int>(Moment::forward_end) == 0 && static_cast<int>(Moment::stop) == 6);

// Smaller payloads gain nothing; nor is it worth it for less than an eighth.
constexpr std::size_t kCompressFrom = 512;

// Reserves the frame's header, lets `fill` append the payload, which holds so many records, then
// completes the header.
template <typename Fill>
void append_frame(std::string& out, FrameType type, std::uint32_t number, std::size_t records,
                  const Fill& fill) {
  const std::size_t start = out.size();
  out.append(kFrameHeaderBytes, '\0');
  fill(out);
  const std::size_t size = out.size() - start - kFrameHeaderBytes;
  Codec codec = Codec::none;
  if (size > kMaxPayload) {
    throw SinkError("too_large", "a batch of " + std::to_string(size) + " bytes exceeds a frame");
  }
  if (size >= kCompressFrom) {
    const auto packed = compressed(std::string_view(out).substr(start + kFrameHeaderBytes));
    const std::size_t least = std::max<std::size_t>(records, size / kMaxRatio + 1);
    if (packed && packed->size() < size - size / 8 && packed->size() >= least) {
      out.replace(start + kFrameHeaderBytes, size, *packed);
      codec = Codec::zstd;
    }
  }
  FrameHeader header;
  header.type = static_cast<std::uint8_t>(type);
  header.codec = static_cast<std::uint8_t>(codec);
  header.raw = static_cast<std::uint32_t>(size);
  header.number = number;
  complete_frame(out, start, header);
}

// The shapes of a batch. Its rows hold numbers that count through a list of the batch's own. So
// its frame can be read without any other.
struct BatchShapes {
  std::vector<std::int64_t> numbers;  // of rows
  std::vector<const Shape*> list;     // from kFirstShape on

  BatchShapes(const std::vector<Row>& rows, const SeriesTable& series) {
    numbers.reserve(rows.size());
    std::unordered_map<ShapeId, std::int64_t> listed;
    for (const Row& row : rows) {
      if (row.shape < kFirstShape) {
        numbers.push_back(row.shape);
        continue;
      }
      const auto [known, is_new] = listed.try_emplace(row.shape, kUnknownShape);
      if (is_new) known->second = add(series.shape(row.shape));
      numbers.push_back(known->second);
    }
  }

  // As FrameBounds counts them.
  std::size_t records() const {
    std::size_t records = list.size();
    for (const Shape* shape : list) records += shape->size();
    return records;
  }

 private:
  std::int64_t add(const Shape* shape) {
    if (shape == nullptr || shape->size() > kMaxDimensions) return kUnknownShape;
    list.push_back(shape);
    return kFirstShape + std::ssize(list) - 1;
  }
};

void append_rows(ByteWriter& writer, const std::vector<Row>& rows, const BatchShapes& shapes) {
  writer.varint(rows.size());
  writer.varint(kColumns.size());
  std::vector<std::int64_t> room;
  for (const ColumnDefinition& definition : kColumns) {
    writer.fixed(static_cast<std::uint8_t>(definition.column));
    append_column(writer, definition, rows, shapes.numbers, room);
  }
}

void append_key(ByteWriter& writer, const RowKey& key) {
  writer.varint(key.series);
  writer.varint(key.flags);
  writer.signed_varint(key.window);
  writer.signed_varint(key.accum);
  writer.signed_varint(key.call);
  writer.varint(key.seq);
}

// One section of records written one after another; nothing when there are none.
template <typename Record, typename Put>
void append_section(ByteWriter& writer, Section section, const std::vector<Record>& records,
                    const Put& put) {
  if (records.empty()) return;
  writer.fixed(static_cast<std::uint8_t>(section));
  append_block(writer, [&](ByteWriter& block) {
    block.varint(records.size());
    for (const Record& record : records) {
      append_block(block, [&](ByteWriter& fields) { put(fields, record); });
    }
  });
}

void append_shape(ByteWriter& writer, const Shape& shape) {
  writer.varint(shape.size());
  for (const std::int64_t size : shape) writer.varint(static_cast<std::uint64_t>(size));
}

void append_head(ByteWriter& writer, const RecordBatch& batch) {
  writer.varint(batch.number);
  writer.fixed(static_cast<std::uint8_t>(batch.moment));
  writer.fixed(batch.time_ns);
  writer.fixed(batch.eps);
}

void append_records(ByteWriter& writer, const RecordBatch& batch,
                    const std::vector<Gap>& more_gaps) {
  append_section(writer, Section::outcomes, batch.outcomes, [](ByteWriter& w, const Outcome& o) {
    w.signed_varint(o.optimizer);
    w.signed_varint(o.window);
    w.signed_varint(o.step);
    w.signed_varint(o.attempt);
    w.fixed(static_cast<std::uint8_t>(o.fate));
    w.fixed(o.loss_scale);
  });
  append_section(writer, Section::scalars, batch.scalars, [](ByteWriter& w, const Scalar& s) {
    w.text(s.name);
    w.signed_varint(s.window);
    w.varint(s.seq);
    w.fixed(s.value);
  });
  append_section(writer, Section::payloads, batch.payloads, [](ByteWriter& w, const Payload& p) {
    w.fixed(static_cast<std::uint8_t>(p.type));
    append_key(w, p.key);
    w.text({reinterpret_cast<const char*>(p.bytes.data()), p.bytes.size()});
  });
  append_section(writer, Section::alerts, batch.alerts, [](ByteWriter& w, const Alert& a) {
    w.text(a.rule);
    append_key(w, a.key);
    w.signed_varint(a.step);
    w.text(a.message);
    w.signed_varint(a.count);
    w.text(a.stat);
    w.fixed(a.value);
    w.fixed(a.expected);
  });
  append_section(writer, Section::declared, batch.declared, [](ByteWriter& w, const Declared& d) {
    w.signed_varint(d.optimizer);
    w.signed_varint(d.group);
    w.signed_varint(d.window);
    w.varint(d.seq);
    w.varint(d.values.size());
    for (const DeclaredValue& value : d.values) {
      w.text(value.name);
      w.fixed(static_cast<std::uint8_t>(value.type));
      if (value.type == DeclaredValue::Type::number) w.fixed(value.number);
      if (value.type == DeclaredValue::Type::text) w.text(value.text);
    }
  });
  std::uint64_t before = 0;
  append_section(writer, Section::checks, batch.checks, [&](ByteWriter& w, const RowCheck& c) {
    w.varint(c.seq - std::exchange(before, c.seq));
    w.fixed(c.fingerprint);
    w.varint(c.has_sketch ? c.sketch.size() : 0);
    if (!c.has_sketch) return;
    for (const float sum : c.sketch) w.fixed(sum);
  });
  before = 0;
  append_section(writer, Section::samples, batch.samples, [&](ByteWriter& w, const RowSample& s) {
    w.varint(s.seq - std::exchange(before, s.seq));
    w.signed_varint(s.elements);
    for (const double value : {s.sum_error, s.sum_sq_error, s.min, s.max}) w.fixed(value);
  });
  std::vector<Gap> gaps = batch.gaps;
  gaps.insert(gaps.end(), more_gaps.begin(), more_gaps.end());
  append_section(writer, Section::gaps, gaps, [](ByteWriter& w, const Gap& g) {
    w.text(g.reason);
    w.signed_varint(g.rows);
    w.varint(g.first_seq);
    w.varint(g.last_seq);
  });
}

}  // namespace

void complete_frame(std::string& out, std::size_t start, const FrameHeader& header) {
  const std::string_view payload = std::string_view(out).substr(start + kFrameHeaderBytes);
  std::string bytes;
  ByteWriter writer(bytes);
  bytes += kFrameMagic;
  writer.fixed(header.type);
  writer.fixed(header.codec);
  writer.fixed(std::uint16_t{0});
  writer.fixed(static_cast<std::uint32_t>(payload.size()));
  writer.fixed(header.raw);
  writer.fixed(header.number);
  writer.fixed(crc32c(payload));
  writer.fixed(crc32c(bytes));
  out.replace(start, kFrameHeaderBytes, bytes);
}

void append_segment_start(std::string& out, const RunInfo& run, const SegmentStart& start) {
  ByteWriter writer(out);
  out += kMagic;
  writer.fixed(kByteOrder);
  writer.fixed(kMajor);
  writer.fixed(start.compacted_bytes == 0 ? kMinor : kMinorCompacted);
  append_frame(out, FrameType::segment, 0, 0, [&](std::string& payload) {
    ByteWriter fields(payload);
    fields.signed_varint(start.number);
    fields.signed_varint(start.previous);
    fields.signed_varint(start.previous_bytes);
    fields.signed_varint(run.rank);
    fields.signed_varint(run.world_size);
    fields.signed_varint(run.restart);
    fields.fixed(run.eps);
    fields.text(run.run_id);
    fields.varint(kColumns.size());
    for (const ColumnDefinition& definition : kColumns) {
      fields.fixed(static_cast<std::uint8_t>(definition.column));
      fields.fixed(static_cast<std::uint8_t>(definition.type));
      fields.text(definition.name);
    }
    if (start.compacted_bytes == 0) return;
    fields.fixed(start.compacted_bytes);
    fields.fixed(start.written_bytes);
  });
}

void append_series_frame(std::string& out, std::uint32_t frame_number,
                         const std::vector<SeriesId>& ids, const SeriesTable& table) {
  append_frame(out, FrameType::series, frame_number, ids.size(), [&](std::string& payload) {
    ByteWriter writer(payload);
    writer.varint(ids.size());
    for (const SeriesId id : ids) {
      const Series& series = table.at(id);
      append_block(writer, [&](ByteWriter& fields) {
        fields.varint(id);
        fields.text(series.kind);
        fields.signed_varint(series.chunk);
        fields.text(series.name);
        fields.text(series.element);
        fields.signed_varint(series.optimizer);
        fields.fixed(static_cast<std::uint8_t>(series.dtype));
        fields.fixed(static_cast<std::uint8_t>(series.space));
        fields.varint(series.ranges.size());
        for (const Range& range : series.ranges) {
          fields.signed_varint(range.begin);
          fields.signed_varint(range.end);
        }
        fields.varint(series.full_shape.size());
        for (const std::int64_t size : series.full_shape) fields.signed_varint(size);
        fields.fixed(static_cast<std::uint8_t>(series.replication));
      });
    }
  });
}

void append_batch_frame(std::string& out, std::uint32_t frame_number, const RecordBatch& batch,
                        const SeriesTable& series, const std::vector<Gap>& more_gaps) {
  const BatchShapes shapes(batch.rows, series);
  const std::size_t records = record_count(batch) + more_gaps.size() + shapes.records();
  append_frame(out, FrameType::batch, frame_number, records, [&](std::string& payload) {
    ByteWriter writer(payload);
    append_head(writer, batch);
    if (!batch.rows.empty()) {
      writer.fixed(static_cast<std::uint8_t>(Section::rows));
      append_block(writer, [&](ByteWriter& block) { append_rows(block, batch.rows, shapes); });
    }
    append_section(writer, Section::shapes, shapes.list,
                   [](ByteWriter& w, const Shape* shape) { append_shape(w, *shape); });
    append_records(writer, batch, more_gaps);
  });
}

std::size_t record_count(const RecordBatch& batch) {
  std::size_t records = batch.rows.size() + batch.outcomes.size() + batch.scalars.size() +
                        batch.payloads.size() + batch.declared.size() + batch.alerts.size() +
                        batch.gaps.size() + batch.shapes.size() + batch.checks.size() +
                        batch.samples.size();
  for (const Declared& declared : batch.declared) records += declared.values.size();
  for (const Shape& shape : batch.shapes) records += shape.size();
  return records;
}

void append_batch_without_rows(std::string& out, const RecordBatch& batch) {
  ByteWriter writer(out);
  append_head(writer, batch);
  append_section(writer, Section::shapes, batch.shapes, append_shape);
  append_records(writer, batch, {});
}

void for_each_series(const RecordBatch& batch, const std::function<void(SeriesId)>& use) {
  for (const Row& row : batch.rows) use(row.key.series);
  for (const Payload& payload : batch.payloads) use(payload.key.series);
  for (const Alert& alert : batch.alerts) use(alert.key.series);
}

}  // namespace trainmon::log_format
