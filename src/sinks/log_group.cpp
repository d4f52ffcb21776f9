// Of each batch its records and what readers choose by stand in front; then come the rows of all.
#include "sinks/log_group.h"

#include <set>
#include <utility>
#include <vector>

#include "model/first_bad.h"
#include "sinks/compress.h"
#include "sinks/log_columns.h"
#include "sinks/log_encode.h"
#include "trainmon/error.h"

namespace trainmon::log_format {
namespace {

// Smaller parts gain nothing.
constexpr std::size_t kPackFrom = 64;

// A part of the payload: what it unpacks to (0: it is as it is), then its bytes.
class Parts {
 public:
  Parts(std::string& out, bool may_pack) : out_(out), may_pack_(may_pack) {}
  void append(std::string_view bytes) {
    ByteWriter writer(out_);
    if (may_pack_ && bytes.size() >= kPackFrom) {
      const auto packed = compressed(bytes);
      if (packed && packed->size() < bytes.size() - bytes.size() / 8) {
        writer.varint(bytes.size());
        writer.text(*packed);
        unpacked_ += bytes.size();
        return;
      }
    }
    writer.varint(0);
    writer.text(bytes);
  }
  // Bytes of the parts that are packed, before.
  std::uint64_t unpacked() const { return unpacked_; }

 private:
  std::string& out_;
  const bool may_pack_;
  std::uint64_t unpacked_ = 0;
};

// What readers choose a batch by: the windows of its rows, and whether one is bad.
void append_facts(ByteWriter& writer, const RecordBatch& batch,
                  const std::map<SeriesId, Series>& series) {
  std::set<std::pair<std::int32_t, std::int64_t>> windows;
  bool has_bad_rows = false;
  for (const Row& row : batch.rows) {
    windows.emplace(series.at(row.key.series).optimizer, row.key.window);
    has_bad_rows = has_bad_rows || is_bad(row.key.flags, row.state);
  }
  writer.varint(batch.rows.size());
  writer.fixed(static_cast<std::uint8_t>(has_bad_rows ? 1 : 0));
  writer.varint(windows.size());
  for (const auto& [optimizer, window] : windows) {
    writer.signed_varint(optimizer);
    writer.signed_varint(window);
  }
}

std::string heads_of(std::span<const RecordBatch> batches,
                     const std::map<SeriesId, Series>& series) {
  std::string heads;
  ByteWriter writer(heads);
  for (const RecordBatch& batch : batches) {
    append_facts(writer, batch, series);
    append_block(writer, [&](ByteWriter& head) { append_batch_without_rows(head.out(), batch); });
  }
  return heads;
}

void append_rows(std::string& out, std::span<const RecordBatch> batches, Parts& parts) {
  std::vector<Row> rows;
  for (const RecordBatch& batch : batches) {
    rows.insert(rows.end(), batch.rows.begin(), batch.rows.end());
  }
  ByteWriter writer(out);
  writer.varint(rows.size());
  if (rows.empty()) return;
  const std::vector<std::int64_t> shapes = [&] {
    std::vector<std::int64_t> numbers;
    numbers.reserve(rows.size());
    for (const Row& row : rows) numbers.push_back(row.shape);
    return numbers;
  }();
  writer.varint(kColumns.size());
  std::vector<std::int64_t> room;
  for (const ColumnDefinition& definition : kColumns) {
    std::string column;
    ByteWriter whole(column);
    append_column(whole, definition, rows, shapes, room);
    ByteReader fields(column);
    writer.fixed(static_cast<std::uint8_t>(definition.column));
    writer.fixed(fields.fixed<std::uint8_t>());  // the encoding
    parts.append(fields.text());
  }
}

}  // namespace

void append_group_frame(std::string& out, std::uint32_t frame_number,
                        std::span<const RecordBatch> batches,
                        const std::map<SeriesId, Series>& series) {
  std::size_t records = 0;
  for (const RecordBatch& batch : batches) records += record_count(batch) + 1;
  const std::string heads = heads_of(batches, series);
  const std::size_t start = out.size();
  for (const bool may_pack : {true, false}) {
    out.resize(start);
    out.append(kFrameHeaderBytes, '\0');
    ByteWriter writer(out);
    Parts parts(out, may_pack);
    writer.varint(batches.size());
    parts.append(heads);
    append_rows(out, batches, parts);
    const std::size_t size = out.size() - start - kFrameHeaderBytes;
    if (size > kMaxPayload) {
      throw SinkError("too_large", "a group of " + std::to_string(size) + " bytes exceeds a frame");
    }
    // What readers believe of a frame of this size (docs/formats.md, Bounds of readers).
    if (may_pack && (size < records || parts.unpacked() > size * kMaxRatio)) continue;
    FrameHeader header;
    header.type = static_cast<std::uint8_t>(FrameType::group);
    header.codec = static_cast<std::uint8_t>(Codec::parts);
    header.raw = static_cast<std::uint32_t>(parts.unpacked());
    header.number = frame_number;
    return complete_frame(out, start, header);
  }
}

}  // namespace trainmon::log_format
