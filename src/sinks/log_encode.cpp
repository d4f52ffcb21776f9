// Each column takes the smallest encoding that gives back exactly the same values.
#include "sinks/log_encode.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "base/crc32c.h"
#include "sinks/compress.h"
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
  std::string header;
  ByteWriter writer(header);
  header += kFrameMagic;
  writer.fixed(static_cast<std::uint8_t>(type));
  writer.fixed(static_cast<std::uint8_t>(codec));
  writer.fixed(std::uint16_t{0});
  writer.fixed(static_cast<std::uint32_t>(out.size() - start - kFrameHeaderBytes));
  writer.fixed(static_cast<std::uint32_t>(size));
  writer.fixed(number);
  writer.fixed(crc32c(std::string_view(out).substr(start + kFrameHeaderBytes)));
  writer.fixed(crc32c(header));
  out.replace(start, kFrameHeaderBytes, header);
}

// A block with its length in front, so that readers can step over what they do not know.
template <typename Fill>
void append_block(ByteWriter& writer, const Fill& fill) {
  std::string block;
  ByteWriter inner(block);
  fill(inner);
  writer.text(block);
}

// A column's values side by side; the memory is used again for the next column.
const std::vector<std::int64_t>& gathered(const std::vector<Row>& rows, Column column) {
  static thread_local std::vector<std::int64_t> values;
  values.resize(rows.size());
  with_integer(column, [&](const auto& member) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      values[i] = static_cast<std::int64_t>(member(rows[i]));
    }
  });
  return values;
}

// The shapes of a batch: what its rows say, which counts through a list of the batch's own, so that
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

void append_integers(ByteWriter& writer, const std::vector<std::int64_t>& values, Column column) {
  const std::int64_t first = values.front();
  const auto varint_bytes = [](std::int64_t value) {
    return (static_cast<std::size_t>(std::bit_width(zigzag(value) | 1)) + 6) / 7;
  };
  const auto difference = [](std::int64_t a, std::int64_t b) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b));
  };
  const bool is_constant =
      std::ranges::all_of(values, [first](std::int64_t value) { return value == first; });
  // Never for seq, so that rows never outnumber bytes.
  if (is_constant && column != Column::seq) {
    writer.fixed(static_cast<std::uint8_t>(Encoding::constant));
    return append_block(writer, [&](ByteWriter& block) { block.signed_varint(first); });
  }
  std::size_t plain_bytes = 0, delta_bytes = 0;
  std::int64_t before = 0;
  for (const std::int64_t value : values) {
    plain_bytes += varint_bytes(value);
    delta_bytes += varint_bytes(difference(value, before));
    before = value;
  }
  const bool is_delta = delta_bytes < plain_bytes;
  writer.fixed(static_cast<std::uint8_t>(is_delta ? Encoding::delta : Encoding::plain));
  writer.varint(is_delta ? delta_bytes : plain_bytes);
  before = 0;
  for (const std::int64_t value : values) {
    writer.signed_varint(is_delta ? difference(value, before) : value);
    before = value;
  }
}

void append_floats(ByteWriter& writer, const std::vector<Row>& rows, Column column) {
  double RowState::*const member = float_member(column);
  const double first = rows.front().state.*member;
  bool is_constant = true, is_float32 = true;
  bool is_implied = column == kMean || column == kAbsmax;
  for (const Row& row : rows) {
    const double value = row.state.*member;
    is_constant = is_constant && same_bits(value, first);
    is_float32 = is_float32 && same_bits(static_cast<double>(static_cast<float>(value)), value);
    if (!is_implied) continue;
    const std::optional<double> implied = implied_value(row.state, column);
    is_implied = implied && same_bits(*implied, value);
  }
  const Encoding encoding = is_implied    ? Encoding::implied
                            : is_constant ? Encoding::constant
                            : is_float32  ? Encoding::float32
                                          : Encoding::plain;
  writer.fixed(static_cast<std::uint8_t>(encoding));
  if (encoding == Encoding::implied) return writer.varint(0);
  if (encoding == Encoding::constant) {
    writer.varint(sizeof(double));
    return writer.fixed(first);
  }
  const std::size_t size = encoding == Encoding::float32 ? sizeof(float) : sizeof(double);
  writer.varint(rows.size() * size);
  for (const Row& row : rows) {
    const double value = row.state.*member;
    if (encoding == Encoding::float32) {
      writer.fixed(static_cast<float>(value));
    } else {
      writer.fixed(value);
    }
  }
}

void append_rows(ByteWriter& writer, const std::vector<Row>& rows, const BatchShapes& shapes) {
  writer.varint(rows.size());
  writer.varint(kColumns.size());
  for (const ColumnDefinition& definition : kColumns) {
    writer.fixed(static_cast<std::uint8_t>(definition.column));
    if (definition.type == ColumnType::integer) {
      const bool is_shape = definition.column == Column::shape;
      append_integers(writer, is_shape ? shapes.numbers : gathered(rows, definition.column),
                      definition.column);
    } else {
      append_floats(writer, rows, definition.column);
    }
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

void append_segment_start(std::string& out, const RunInfo& run, const SegmentStart& start) {
  ByteWriter writer(out);
  out += kMagic;
  writer.fixed(kByteOrder);
  writer.fixed(kMajor);
  writer.fixed(kMinor);
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
  std::size_t records = batch.rows.size() + batch.outcomes.size() + batch.scalars.size() +
                        batch.payloads.size() + batch.declared.size() + batch.alerts.size() +
                        batch.gaps.size() + more_gaps.size() + shapes.records();
  for (const Declared& declared : batch.declared) records += declared.values.size();
  append_frame(out, FrameType::batch, frame_number, records, [&](std::string& payload) {
    ByteWriter writer(payload);
    writer.varint(batch.number);
    writer.fixed(static_cast<std::uint8_t>(batch.moment));
    writer.fixed(batch.time_ns);
    writer.fixed(batch.eps);
    if (!batch.rows.empty()) {
      writer.fixed(static_cast<std::uint8_t>(Section::rows));
      append_block(writer, [&](ByteWriter& block) { append_rows(block, batch.rows, shapes); });
    }
    append_section(writer, Section::shapes, shapes.list, [](ByteWriter& w, const Shape* shape) {
      w.varint(shape->size());
      for (const std::int64_t size : *shape) w.varint(static_cast<std::uint64_t>(size));
    });
    append_records(writer, batch, more_gaps);
  });
}

void for_each_series(const RecordBatch& batch, const std::function<void(SeriesId)>& use) {
  for (const Row& row : batch.rows) use(row.key.series);
  for (const Payload& payload : batch.payloads) use(payload.key.series);
  for (const Alert& alert : batch.alerts) use(alert.key.series);
}

}  // namespace trainmon::log_format
