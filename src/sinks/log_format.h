// The bytes of a log segment, as docs/formats.md describes them: numbers, names, and how a value is
// put into bytes and taken out again. Shared by the sink `log` and the reader in src/read.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "model/state_fields.h"
#include "trainmon/record.h"

namespace trainmon::log_format {

// --- file ---------------------------------------------------------------------------------------
inline constexpr std::string_view kMagic = "TMLOG\r\n\x1a";
inline constexpr std::uint32_t kByteOrder = 0x01020304;  // stored little-endian: 04 03 02 01
inline constexpr std::uint16_t kMajor = 1;               // a reader refuses another major version
inline constexpr std::uint16_t kMinor = 1;
inline constexpr std::uint16_t kMinorCompacted = 2;  // of segments with groups
inline constexpr std::size_t kPreambleBytes = 16;

// "log-000012.tmlog".
std::string segment_name(int number);
// The other way; nullopt for what is called otherwise.
std::optional<int> segment_number(std::string_view name);
// What readers keep of a segment beside it, and what goes with it: "log-000012.tmindex".
inline constexpr std::string_view kIndexExtension = ".tmindex";

// --- frame --------------------------------------------------------------------------------------
inline constexpr std::string_view kFrameMagic = "tmFR";
inline constexpr std::size_t kFrameHeaderBytes = 28;
inline constexpr std::uint32_t kMaxPayload = 1u << 30;
// A payload is compressed only so far that it keeps a byte for so many of its bytes. It also
// keeps a byte for each of its records. Readers, which believe nobody, take memory by the size of
// the file.
inline constexpr std::uint64_t kMaxRatio = 64;

// Of a tensor with more dimensions the shape is not kept, so that no list of shapes is out of
// proportion to its rows.
inline constexpr std::size_t kMaxDimensions = 64;

enum class FrameType : std::uint8_t { segment = 1, series = 2, batch = 3, group = 4 };
// parts: the payload says itself which of its parts are packed.
enum class Codec : std::uint8_t { none = 0, zstd = 1, parts = 2 };

struct FrameHeader {
  std::uint8_t type = 0;
  std::uint8_t codec = 0;
  std::uint32_t stored = 0;  // bytes of the payload in the file
  std::uint32_t raw = 0;     // bytes of the payload after decompression
  std::uint32_t number = 0;  // 0, 1, 2, ... within the segment
  std::uint32_t payload_crc = 0;
};

// --- batch --------------------------------------------------------------------------------------
enum class Section : std::uint8_t {
  rows = 1,
  outcomes = 2,
  scalars = 3,
  payloads = 4,
  alerts = 5,
  gaps = 6,
  declared = 7,
  shapes = 8,
  checks = 9,
  samples = 10,
};

enum class ColumnType : std::uint8_t { integer = 1, float64 = 2 };
enum class Encoding : std::uint8_t {
  constant = 0,  // one value for all rows
  plain = 1,     // integers: zigzag varints; floats: 8 bytes each
  delta = 2,     // integers: zigzag varints of the difference to the value before (0 at first)
  float32 = 3,   // floats that are float32 numbers: 4 bytes each
  implied = 4,   // mean = sum / finite count; absmax = max(|min|, |max|): no bytes
};

// Of what stands beside the state of a row; the columns of the state are those of kStateFields.
enum class Column : std::uint8_t {
  series = 1,
  flags = 2,
  window = 3,
  accum = 4,
  call = 5,
  seq = 6,
  shape = 21,
};
struct ColumnDefinition {
  Column column;
  ColumnType type;
  std::string_view name;
};
// In the order in which they are written: what a column is implied by comes before it.
inline constexpr auto kColumns = [] {
  std::array<ColumnDefinition, 7 + kStateFieldCount> columns = {{
      {Column::series, ColumnType::integer, "series"},
      {Column::flags, ColumnType::integer, "flags"},
      {Column::window, ColumnType::integer, "window"},
      {Column::accum, ColumnType::integer, "accum"},
      {Column::call, ColumnType::integer, "call"},
      {Column::seq, ColumnType::integer, "seq"},
  }};
  std::size_t next = 6;
  each_state_field([&](auto field) {
    columns[next++] = {Column{field.column},
                       field.is_integer ? ColumnType::integer : ColumnType::float64, field.name};
  });
  columns[next] = {Column::shape, ColumnType::integer, "shape"};
  return columns;
}();
static_assert(
    [] {
      for (std::size_t i = 0; i < kColumns.size(); ++i) {
        for (std::size_t j = 0; j < i; ++j) {
          if (kColumns[i].column == kColumns[j].column) return false;
        }
      }
      return true;
    }(),
    "two columns have one number");

// The column of a field of the state.
template <typename T>
constexpr Column column_of(T RowState::*member) {
  Column column{};
  each_state_field([&](auto field) {
    if constexpr (std::is_same_v<typename decltype(field)::Type, T>) {
      if (field.member == member) column = Column{field.column};
    }
  });
  return column;
}
inline constexpr Column kMean = column_of(&RowState::mean);
inline constexpr Column kAbsmax = column_of(&RowState::absmax);

// Calls use(member) with what picks the integer of a column out of a row. So a loop over rows
// asks once which it is. Does nothing for a column of another type.
template <typename Use>
void with_integer(Column column, const Use& use) {
  switch (column) {
    case Column::series:
      return use([](auto& row) -> auto& { return row.key.series; });
    case Column::flags:
      return use([](auto& row) -> auto& { return row.key.flags; });
    case Column::window:
      return use([](auto& row) -> auto& { return row.key.window; });
    case Column::accum:
      return use([](auto& row) -> auto& { return row.key.accum; });
    case Column::call:
      return use([](auto& row) -> auto& { return row.key.call; });
    case Column::seq:
      return use([](auto& row) -> auto& { return row.key.seq; });
    case Column::shape:
      return use([](auto& row) -> auto& { return row.shape; });
  }
  each_state_field([&](auto field) {
    if constexpr (field.is_integer) {
      if (column != Column{field.column}) return;
      use([](auto& row) -> auto& { return row.state.*decltype(field)::member; });
    }
  });
}

// A column's value in a row. Signed and unsigned 64-bit share one representation.
std::int64_t integer_of(const Row& row, Column column);
double float_of(const Row& row, Column column);
// The member of a row's state that a float column holds.
double RowState::*float_member(Column column);
// What Encoding::implied stands for; nullopt for a column without such a rule.
std::optional<double> implied_value(const RowState& state, Column column);

// --- bytes --------------------------------------------------------------------------------------
inline std::uint64_t zigzag(std::int64_t value) {
  return (static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63);
}
inline std::int64_t unzigzag(std::uint64_t value) {
  return static_cast<std::int64_t>((value >> 1) ^ (~(value & 1) + 1));
}

// Appends little-endian values to a string.
class ByteWriter {
 public:
  explicit ByteWriter(std::string& out) : out_(out) {}
  template <typename T>
  void fixed(T value) {
    if constexpr (std::endian::native == std::endian::big) value = reversed(value);
    const auto bytes = std::bit_cast<std::array<char, sizeof(T)>>(value);
    out_.append(bytes.data(), bytes.size());
  }
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_ += static_cast<char>(value | 0x80);
    out_ += static_cast<char>(value);
  }
  void signed_varint(std::int64_t value) { varint(zigzag(value)); }
  void text(std::string_view value) {
    varint(value.size());
    out_ += value;
  }
  std::string& out() { return out_; }

 private:
  template <typename T>
  static T reversed(T value) {
    auto bytes = std::bit_cast<std::array<char, sizeof(T)>>(value);
    for (std::size_t i = 0; i < sizeof(T) / 2; ++i) std::swap(bytes[i], bytes[sizeof(T) - 1 - i]);
    return std::bit_cast<T>(bytes);
  }
  std::string& out_;
};

// Takes them out again. Never reads past the end: then ok() is false for good and values are 0.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}
  bool ok() const { return ok_; }
  std::size_t left() const { return bytes_.size(); }
  std::string_view take(std::uint64_t size) {
    if (size > bytes_.size()) return fail();
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }
  template <typename T>
  T fixed() {
    std::array<char, sizeof(T)> bytes{};
    const std::string_view taken = take(sizeof(T));
    if (taken.size() != sizeof(T)) return T{};
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bytes[std::endian::native == std::endian::little ? i : sizeof(T) - 1 - i] = taken[i];
    }
    return std::bit_cast<T>(bytes);
  }
  std::uint64_t varint() {
    if (!bytes_.empty() && static_cast<unsigned char>(bytes_.front()) < 0x80) {  // most are
      const auto byte = static_cast<unsigned char>(bytes_.front());
      bytes_.remove_prefix(1);
      return byte;
    }
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (bytes_.empty()) break;
      const auto byte = static_cast<unsigned char>(bytes_.front());
      bytes_.remove_prefix(1);
      if (shift == 63 && byte > 1) break;
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    fail();
    return 0;
  }
  std::int64_t signed_varint() { return unzigzag(varint()); }
  std::string_view text() { return take(varint()); }
  // So many of them, however long.
  void skip_varints(std::uint64_t count) {
    constexpr std::uint64_t kMore = 0x8080808080808080;
    while (count > 0 && bytes_.size() >= sizeof(std::uint64_t)) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes_.data(), sizeof word);
      const auto ends = static_cast<std::uint64_t>(std::popcount(~word & kMore));
      if (ends >= count) break;  // the last one ends in here
      count -= ends;
      bytes_.remove_prefix(sizeof word);
    }
    while (count > 0) {
      if (bytes_.empty()) {
        fail();
        return;
      }
      count -= static_cast<unsigned char>(bytes_.front()) < 0x80 ? 1 : 0;
      bytes_.remove_prefix(1);
    }
  }

 private:
  std::string_view fail() {
    ok_ = false;
    bytes_ = {};
    return {};
  }
  std::string_view bytes_;
  bool ok_ = true;
};

}  // namespace trainmon::log_format
