// The decoders alone, behind the checksums: payloads that were changed on purpose.
#include <gtest/gtest.h>

#include "read/log_decode.h"
#include "records.h"
#include "sinks/compress.h"

namespace trainmon {
namespace {

using namespace log_format;

// The payload of a frame as it was before compression.
std::string payload_in(const std::string& frame) {
  ByteReader reader(std::string_view(frame).substr(5));
  const auto codec = reader.fixed<std::uint8_t>();
  reader.take(6);
  const auto raw = reader.fixed<std::uint32_t>();
  const std::string stored = frame.substr(kFrameHeaderBytes);
  if (codec == 0) return stored;
  std::string bytes;
  EXPECT_TRUE(decompress(stored, raw, bytes));
  return bytes;
}

std::string payload_of(const RecordBatch& batch, const SeriesTable& table = ListedSeries()) {
  std::string frame;
  append_batch_frame(frame, 0, batch, table);
  return payload_in(frame);
}

TEST(Decode, ChangedPayloadsAreRefusedOrDecodedNeverMore) {
  RandomRecords random(1);
  ListedSeries table;
  std::vector<SeriesId> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(table.add(random.series()));
  for (const Shape& shape : {Shape{}, Shape{3, 300}, Shape{0}}) table.add(shape);
  std::string series_frame, segment;
  append_series_frame(series_frame, 0, ids, table);
  append_segment_start(segment, RunInfo(), SegmentStart());
  const std::string series_payload = payload_in(series_frame);
  const std::string segment_payload = payload_in(segment.substr(kPreambleBytes));
  int refused = 0;
  for (int round = 0; round < 30000; ++round) {
    const int what = round % 3;
    RecordBatch batch = random.batch(0, 5, 6);
    for (Row& row : batch.rows) row.shape = static_cast<ShapeId>(random.below(5));
    std::string payload = what == 0   ? payload_of(batch, table)
                          : what == 1 ? series_payload
                                      : segment_payload;
    for (std::uint64_t n = 1 + random.below(4); n > 0 && !payload.empty(); --n) {
      const std::size_t at = random.below(payload.size());
      if (random.below(3) == 0) {
        payload.resize(at);
      } else {
        payload[at] = static_cast<char>(random.below(256));
      }
    }
    std::string why;
    FrameBounds bounds;
    std::map<SeriesId, Series> series;
    const bool is_used = what == 0   ? decode_batch(payload, bounds, why).has_value()
                         : what == 1 ? decode_series(payload, series, bounds, why)
                                     : decode_segment(payload, why).has_value();
    EXPECT_EQ(is_used, why.empty());
    refused += is_used ? 0 : 1;
  }
  EXPECT_GT(refused, 1000);
}

TEST(Decode, AClaimOfManyRowsAllocatesNothing) {
  std::string payload, why;
  FrameBounds bounds;
  ByteWriter writer(payload);
  writer.varint(0);
  writer.fixed(std::uint8_t{0});
  writer.fixed(std::int64_t{0});
  writer.fixed(1e-8);
  writer.fixed(static_cast<std::uint8_t>(Section::rows));
  std::string rows;
  ByteWriter inner(rows);
  inner.varint(std::uint64_t{1} << 60);
  inner.varint(0);
  writer.text(rows);
  EXPECT_FALSE(decode_batch(payload, bounds, why));
  EXPECT_EQ(why, "more rows than bytes");
}

TEST(Decode, AFrameHoldsWhatItsBytesInTheFileBearOut) {
  RandomRecords random(3);
  RecordBatch batch = random.batch(3, 5);
  batch.rows.resize(1000, Row{});
  for (std::size_t i = 0; i < batch.rows.size(); ++i) batch.rows[i].key.seq = i;
  const std::string payload = payload_of(batch);
  Allowance allowance, spent;
  while (spent.take(1)) spent.take(1 << 20);
  std::string why;
  const auto is_read = [&](std::uint64_t stored, Allowance& left) {
    why.clear();
    FrameBounds bounds(stored, left);
    return decode_batch(payload, bounds, why).has_value();
  };
  EXPECT_TRUE(is_read(2000, spent)) << why;
  EXPECT_FALSE(is_read(999, spent));
  EXPECT_EQ(why, "it holds more records than its bytes in the file can");
  EXPECT_TRUE(is_read(100, allowance)) << why;  // as logs of former versions
  EXPECT_TRUE(FrameBounds(10, spent).takes_bytes(640));
  EXPECT_FALSE(FrameBounds(10, spent).takes_bytes(641));
}

// A batch of nothing but these checks, which claims so many.
std::string payload_with_checks(std::uint64_t claimed, const std::vector<std::string>& checks) {
  std::string section, payload;
  ByteWriter inner(section);
  inner.varint(claimed);
  for (const std::string& one : checks) inner.text(one);
  ByteWriter outer(payload);
  outer.varint(0);
  outer.fixed(std::uint8_t{0});
  outer.fixed(std::int64_t{0});
  outer.fixed(1e-8);
  outer.fixed(static_cast<std::uint8_t>(Section::checks));
  outer.text(section);
  return payload;
}

TEST(Decode, ChecksOfForgedSizesAreRefused) {
  const auto check = [](std::uint64_t sums, std::size_t bytes) {
    std::string out;
    ByteWriter writer(out);
    writer.varint(5);
    writer.fixed(std::uint64_t{1} << 63 | 1);
    writer.varint(sums);
    return out + std::string(bytes, '\1');
  };
  const auto read = [](const std::string& payload, Columns columns, std::uint64_t stored) {
    Allowance spent;
    while (spent.take(1)) spent.take(1 << 20);
    FrameBounds bounds(stored, spent);
    RecordBatch batch;
    std::string why;
    return decode_batch(payload, batch, bounds, why, columns) ? std::ssize(batch.checks) : -1;
  };
  const Columns all = Columns::all(), none;
  EXPECT_EQ(read(payload_with_checks(2, {check(8, 32), check(0, 0)}), all, 100), 2);
  EXPECT_EQ(read(payload_with_checks(1, {check(8, 40)}), all, 100), 1);  // a later field
  EXPECT_EQ(read(payload_with_checks(2, {check(8, 32), check(0, 0)}), none, 100), 0);
  EXPECT_EQ(read(payload_with_checks(1, {check(3, 32)}), all, 100), -1);
  EXPECT_EQ(read(payload_with_checks(1, {check(8, 31)}), all, 100), -1);
  EXPECT_EQ(read(payload_with_checks(1, {check(std::uint64_t{1} << 62, 32)}), all, 100), -1);
  for (const Columns& columns : {all, none}) {  // as many as bytes in the file, or fewer
    EXPECT_EQ(read(payload_with_checks(std::uint64_t{1} << 60, {check(0, 0)}), columns, 100), -1);
    EXPECT_EQ(read(payload_with_checks(3, {check(0, 0), check(0, 0), check(0, 0)}), columns, 2),
              -1);
  }
}

// A batch of which nothing but its rows' numbers of shapes and its list is of interest.
std::string payload_with_shapes(const std::vector<std::int64_t>& numbers,
                                const std::vector<std::string>& listed) {
  std::string rows, list, payload;
  ByteWriter inner(rows);
  inner.varint(numbers.size());
  inner.varint(1);
  inner.fixed(static_cast<std::uint8_t>(Column::shape));
  inner.fixed(static_cast<std::uint8_t>(Encoding::plain));
  std::string column;
  for (const std::int64_t number : numbers) ByteWriter(column).signed_varint(number);
  inner.text(column);
  ByteWriter shapes(list);
  shapes.varint(listed.size());
  for (const std::string& one : listed) shapes.text(one);
  ByteWriter outer(payload);
  outer.varint(0);
  outer.fixed(std::uint8_t{0});
  outer.fixed(std::int64_t{0});
  outer.fixed(1e-8);
  outer.fixed(static_cast<std::uint8_t>(Section::rows));
  outer.text(rows);
  outer.fixed(static_cast<std::uint8_t>(Section::shapes));
  outer.text(list);
  return payload;
}

TEST(Decode, ShapesAreListedByTheirBatchOrItIsRefused) {
  const auto text = [](std::initializer_list<unsigned> bytes) {
    std::string out;
    for (const unsigned byte : bytes) out += static_cast<char>(byte);
    return out;
  };
  std::string why;
  FrameBounds bounds;
  const auto read = [&](const std::vector<std::int64_t>& numbers,
                        const std::vector<std::string>& listed) {
    why.clear();
    return decode_batch(payload_with_shapes(numbers, listed), bounds, why);
  };
  // [], [0, 300], and one with a field that a later version added.
  const std::vector<std::string> listed = {text({0}), text({2, 0, 0xAC, 2}), text({1, 7, 99})};
  const auto sound = read({4, 0, 2, 1, 3, 2}, listed);
  ASSERT_TRUE(sound) << why;
  EXPECT_EQ(sound->shapes, (std::vector<Shape>{{}, {0, 300}, {7}}));
  std::vector<ShapeId> numbers;
  for (const Row& row : sound->rows) numbers.push_back(row.shape);
  EXPECT_EQ(numbers, (std::vector<ShapeId>{4, 0, 2, 1, 3, 2}));

  for (const std::int64_t number : {5, -1, 1 << 30}) {
    EXPECT_FALSE(read({2, number}, listed)) << number;
    EXPECT_EQ(why, "a row has a shape that the batch does not list");
  }
  // Cut short, more dimensions than any tensor has, a size of 2^63.
  std::string negative;
  ByteWriter(negative).varint(1);
  ByteWriter(negative).varint(std::uint64_t{1} << 63);
  for (const std::string& bad : {text({2, 1}), std::string(), text({65}) + std::string(65, 1),
                                 text({0xFF, 0xFF, 0xFF, 0xFF, 0xF}), negative}) {
    EXPECT_FALSE(read({2}, {bad}));
    EXPECT_EQ(why, "section 8 cannot be decoded");
  }
  EXPECT_TRUE(read({2}, {text({64}) + std::string(64, 1)})) << why;
}

TEST(Decode, SizesOfShapesAreRecordsToTheBounds) {
  Allowance spent;
  while (spent.take(1)) spent.take(1 << 20);
  const std::string shape = static_cast<char>(64) + std::string(64, 1);
  const std::string payload = payload_with_shapes({2}, std::vector<std::string>(100, shape));
  std::string why;
  const auto is_read = [&](std::uint64_t stored) {
    FrameBounds bounds(stored, spent);
    return decode_batch(payload, bounds, why).has_value();
  };
  EXPECT_TRUE(is_read(1 + 100 * 65)) << why;
  EXPECT_FALSE(is_read(100 * 65));
  EXPECT_EQ(why, "it holds more records than its bytes in the file can");
}

// The writer keeps to the same bounds, however well its shapes are packed.
TEST(Decode, ABatchOfManyShapesIsReadBack) {
  ListedSeries table;
  RecordBatch batch;
  std::vector<Shape> written;
  for (std::uint64_t i = 0; i < 3000; ++i) {
    written.emplace_back(i % (kMaxDimensions + 1), 1);
    written.back().push_back(static_cast<std::int64_t>(i));
    Row row;
    row.key.seq = i;
    row.shape = table.add(written.back());
    batch.rows.push_back(row);
  }
  std::string frame;
  append_batch_frame(frame, 0, batch, table);
  Allowance spent;
  while (spent.take(1)) spent.take(1 << 20);
  FrameBounds bounds(frame.size() - kFrameHeaderBytes, spent);
  std::string why;
  const std::optional<RecordBatch> read = decode_batch(payload_in(frame), bounds, why);
  ASSERT_TRUE(read) << why;
  for (std::size_t i = 0; i < written.size(); ++i) {
    const ShapeId number = read->rows[i].shape;
    if (written[i].size() > kMaxDimensions) {
      EXPECT_EQ(number, kUnknownShape);
    } else {
      EXPECT_EQ(read->shapes[number - kFirstShape], written[i]);
    }
  }
}

TEST(Decode, LaterSectionsColumnsAndFieldsAreSteppedOver) {
  RandomRecords random(2);
  RecordBatch batch = random.batch(3, 5);
  batch.rows.resize(1);
  std::string payload = payload_of(batch);
  ByteWriter writer(payload);
  writer.fixed(std::uint8_t{200});  // a section of a later version
  writer.text("whatever");
  std::string why;
  FrameBounds bounds;
  std::optional<RecordBatch> read = decode_batch(payload, bounds, why);
  ASSERT_TRUE(read) << why;
  EXPECT_TRUE(same(*read, batch));

  // A batch whose rows have one more column, known to a later version only.
  std::string rows;
  ByteWriter inner(rows);
  inner.varint(2);
  inner.varint(3);
  inner.fixed(static_cast<std::uint8_t>(Column::seq));
  inner.fixed(static_cast<std::uint8_t>(Encoding::plain));
  inner.text(std::string("\x02\x04", 2));
  inner.fixed(std::uint8_t{77});
  inner.fixed(std::uint8_t{9});
  inner.text("fingerprints");
  inner.fixed(static_cast<std::uint8_t>(column_of(&RowState::count)));
  inner.fixed(static_cast<std::uint8_t>(Encoding::constant));
  inner.text("\x0E");
  std::string later;
  ByteWriter outer(later);
  outer.varint(4);
  outer.fixed(std::uint8_t{0});
  outer.fixed(std::int64_t{0});
  outer.fixed(1e-8);
  outer.fixed(static_cast<std::uint8_t>(Section::rows));
  outer.text(rows);
  read = decode_batch(later, bounds, why);
  ASSERT_TRUE(read) << why;
  ASSERT_EQ(read->rows.size(), 2u);
  EXPECT_EQ(read->rows[1].key.seq, 2u);
  EXPECT_EQ(read->rows[0].state.count, 7);
}

// Alerts as they were written before they had a statistic.
TEST(Decode, AlertsOfEarlierLogsAreReadWithoutStatistic) {
  std::string alert;
  ByteWriter fields(alert);
  fields.text("non_finite");
  for (const std::uint64_t number : {2, 16}) fields.varint(number);  // series, flags
  for (const std::int64_t number : {5, 1, 0}) fields.signed_varint(number);
  fields.varint(9);  // seq
  fields.signed_varint(41);
  fields.text("p: 1 NaN");
  fields.signed_varint(8);
  std::string section;
  ByteWriter inner(section);
  inner.varint(1);
  inner.text(alert);
  std::string payload;
  ByteWriter outer(payload);
  outer.varint(4);
  outer.fixed(std::uint8_t{0});
  outer.fixed(std::int64_t{0});
  outer.fixed(1e-8);
  outer.fixed(static_cast<std::uint8_t>(Section::alerts));
  outer.text(section);
  std::string why;
  FrameBounds bounds;
  const std::optional<RecordBatch> read = decode_batch(payload, bounds, why);
  ASSERT_TRUE(read) << why;
  ASSERT_EQ(read->alerts.size(), 1u);
  const Alert& found = read->alerts[0];
  EXPECT_EQ(found.rule, "non_finite");
  EXPECT_EQ(found.key.window, 5);
  EXPECT_EQ(found.key.seq, 9u);
  EXPECT_EQ(found.step, 41);
  EXPECT_EQ(found.message, "p: 1 NaN");
  EXPECT_EQ(found.count, 8);
  EXPECT_EQ(found.stat, "");
  EXPECT_NE(found.value, found.value);
  EXPECT_NE(found.expected, found.expected);
}

TEST(Decode, VarintsOfEverySizeAndNoLonger) {
  RandomRecords random(3);
  for (int i = 0; i < 20000; ++i) {
    const std::int64_t value = random.integer();
    std::string bytes;
    ByteWriter(bytes).signed_varint(value);
    ByteReader reader(bytes);
    EXPECT_EQ(reader.signed_varint(), value);
    EXPECT_TRUE(reader.ok());
    EXPECT_EQ(reader.left(), 0u);
    ByteReader cut(std::string_view(bytes).substr(0, bytes.size() - 1));
    cut.varint();
    EXPECT_FALSE(cut.ok());
  }
  ByteReader endless(std::string_view("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01", 11));
  EXPECT_EQ(endless.varint(), 0u);
  EXPECT_FALSE(endless.ok());
}

}  // namespace
}  // namespace trainmon
