// The mirror of src/sinks/log_group.cpp.
#include "read/log_group.h"

#include <list>

#include "read/log_decode.h"
#include "sinks/compress.h"

namespace trainmon {
namespace {

using namespace log_format;

// Takes parts out of a payload; together they may unpack to what the header of the frame said.
class Parts {
 public:
  explicit Parts(std::uint64_t raw) : left_(raw) {}
  // Points `bytes` at the part, whose memory lives as long as this; false where it is not sound.
  bool take(ByteReader& reader, std::string_view& bytes) {
    std::uint64_t size = 0;
    if (!skip(reader, size, bytes)) return false;
    if (size == 0) return true;
    std::string& unpacked = unpacked_.emplace_back();
    if (!decompress(bytes, size, unpacked)) return false;
    bytes = unpacked;
    return true;
  }
  // The same without unpacking.
  bool skip(ByteReader& reader) {
    std::uint64_t size = 0;
    std::string_view bytes;
    return skip(reader, size, bytes);
  }

 private:
  bool skip(ByteReader& reader, std::uint64_t& size, std::string_view& bytes) {
    size = reader.varint();
    bytes = reader.text();
    if (!reader.ok() || size > left_) return false;
    left_ -= size;
    return true;
  }
  std::uint64_t left_;
  std::list<std::string> unpacked_;  // addresses stay
};

// The rows of all batches, given out in order.
class GroupRows {
 public:
  // False where there are more than bytes of the payload: seq takes one for each at least.
  bool count(ByteReader& reader, std::size_t payload, FrameBounds& bounds, std::string& why) {
    left_ = reader.varint();
    if (left_ <= payload && bounds.takes_records(left_)) return reader.ok();
    why = kTooManyRecords;
    return false;
  }
  // False where the columns cannot be decoded; `why` tells.
  bool open(ByteReader& reader, Parts& parts, Columns columns, std::string& why) {
    if (left_ == 0) return reader.ok();
    for (std::uint64_t count = reader.varint(); count > 0 && reader.ok(); --count) {
      const auto id = reader.fixed<std::uint8_t>();
      const auto encoding = static_cast<Encoding>(reader.fixed<std::uint8_t>());
      const ColumnDefinition* const known = known_column(id);
      if (known == nullptr || !columns.has(known->column)) {
        if (parts.skip(reader)) continue;
        break;
      }
      std::string_view data;
      if (!parts.take(reader, data)) {
        why = column_fault(*known);
        return false;
      }
      columns_.add({*known, encoding, data});
    }
    return reader.ok();
  }
  bool skip(std::uint64_t count) {
    if (count > left_) return false;
    left_ -= count;
    return true;
  }
  bool read(std::uint64_t count, const WantedSeries& wanted, std::vector<Row>& rows,
            std::string& why) {
    return skip(count) && columns_.read(count, wanted, rows, why);
  }
  bool is_at_end() { return left_ == 0 && columns_.not_at_end() == nullptr; }

 private:
  std::uint64_t left_ = 0;
  RowReader columns_;
};

bool read_facts(ByteReader& reader, GroupedBatch& batch) {
  batch.rows = reader.varint();
  batch.has_bad_rows = reader.fixed<std::uint8_t>() != 0;
  batch.windows.clear();
  for (std::uint64_t count = reader.varint(); count > 0 && reader.ok(); --count) {
    const auto optimizer = static_cast<std::int32_t>(reader.signed_varint());
    batch.windows.emplace_back(optimizer, reader.signed_varint());
  }
  return reader.ok();
}

}  // namespace

bool decode_group(std::string_view payload, std::uint32_t raw, FrameBounds& bounds,
                  std::string& why, std::optional<Columns> columns, const WantedSeries& wanted,
                  const std::function<void(RecordBatch&, const GroupedBatch&)>& take) {
  ByteReader reader(payload);
  Parts parts(raw);
  const auto fault = [&] {
    if (why.empty()) why = "the group cannot be decoded";
    return false;
  };
  std::uint64_t batches = reader.varint();
  std::string_view head_bytes;
  if (!bounds.takes_bytes(raw) || !parts.take(reader, head_bytes)) return fault();
  GroupRows rows;
  if (!rows.count(reader, payload.size(), bounds, why)) return fault();
  if (columns && !rows.open(reader, parts, *columns, why)) return fault();
  ByteReader heads(head_bytes);
  const Columns of_heads = columns.value_or(Columns()).without_rows();
  RecordBatch batch;
  GroupedBatch facts;
  for (; batches > 0; --batches) {
    if (!bounds.takes_records(1) || !read_facts(heads, facts)) return fault();
    const std::string_view head = heads.text();
    if (!heads.ok() || !decode_batch(head, batch, bounds, why, of_heads)) return fault();
    if (!batch.rows.empty()) return fault();  // rows are in columns alone
    const bool are_read =
        columns ? rows.read(facts.rows, wanted, batch.rows, why) : rows.skip(facts.rows);
    if (!are_read || !has_listed_shapes(batch, why)) return fault();
    take(batch, facts);
  }
  return (heads.left() == 0 && rows.is_at_end()) || fault();
}

}  // namespace trainmon
