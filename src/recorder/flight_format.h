// The bytes of a flight recorder's file (docs/formats.md): a header, names, a ring of slots. All
// numbers are little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace trainmon::flight {

inline constexpr std::string_view kMagic = "TMFLIGHT";
inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::size_t kHeaderBytes = 4096;
inline constexpr std::size_t kDescriptionAt = 512;  // up to the end of the header
inline constexpr std::size_t kLeastBytes = std::size_t{64} << 10;
inline constexpr std::size_t kMostNameBytes = std::size_t{8} << 20;

// Constant once written, but for what follows `checksum`.
struct Header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t slot_bytes;
  std::uint64_t names_at, names_bytes;
  std::uint64_t slots_at, slots;
  std::int32_t rank, world_size, restart, clock;
  std::int64_t pid;
  std::int64_t started_ns;  // since 1970, as all times
  char host[64];            // cut, without a zero when it is as long
  char run_id[64];
  char zeros[44];
  std::uint32_t checksum;  // CRC-32C of the bytes before it

  std::uint64_t claimed;     // slots that were ever begun
  std::uint64_t names_used;  // bytes
  std::uint64_t names_lost;  // for want of room
  std::uint64_t closed;      // 1: in order
  std::int64_t beat_ns;      // about once a second while the writer thread lives
};
static_assert(offsetof(Header, checksum) == 252 && offsetof(Header, beat_ns) == 288);

enum class Type : std::uint16_t {
  row = 1,
  outcome = 2,
  scalar = 3,
  alert = 4,
  stage = 5,
  enter = 6,  // a collective
  leave = 7,
};

// Bits of `detail` of enter and leave.
inline constexpr std::uint16_t kWaits = 1;
inline constexpr std::uint16_t kPointToPoint = 2;

// Set in `seq` while a slot is written.
inline constexpr std::uint64_t kBusy = std::uint64_t{1} << 63;

// One event. What each type keeps in which member is a table in docs/formats.md; the rest is zero.
struct Slot {
  std::uint64_t seq;  // from 1; the slot is number (seq - 1) modulo slots
  std::int64_t time_ns;
  std::uint16_t type, detail;
  std::uint32_t id;
  std::int64_t window, step;
  std::int32_t accum, call;
  std::uint64_t number;
  std::int64_t count, nans, infs;
  double values[4];
  std::uint32_t flags;
  std::int32_t optimizer;
  std::uint32_t group;
  std::uint32_t checksum;  // CRC-32C of the bytes before it
};
inline constexpr std::size_t kSlotBytes = sizeof(Slot);
static_assert(kSlotBytes == 128 && offsetof(Slot, checksum) == 124);

enum class NameType : std::uint16_t {
  series = 1,  // kind, name, element, dtype, each but the last with a zero after it
  word = 2,    // an operation, a scalar, a rule, a statistic
  group = 3,   // name, zero, ranks: "0-3,8", "*" for all, nothing where they are not known
};
// Before the bytes of a name, which are filled up with zeros to a multiple of four.
struct NameHead {
  std::uint32_t checksum;  // CRC-32C of what follows it, the zeros included
  std::uint16_t type, length;
  std::uint32_t id;  // of the series; words and groups are numbered together from 1
};
static_assert(sizeof(NameHead) == 12);

// For whoever finds the file without these pages.
inline constexpr std::string_view kDescription =
    R"({"what":"trainmon flight recorder: the last events of one rank","byte_order":"little",)"
    R"("header":{"version":"u4@8","slot_bytes":"u4@12","names_at":"u8@16","names_bytes":"u8@24",)"
    R"("slots_at":"u8@32","slots":"u8@40","rank":"i4@48","world_size":"i4@52","restart":"i4@56",)"
    R"("clock":"i4@60","pid":"i8@64","started_ns":"i8@72","host":"s64@80","run_id":"s64@144",)"
    R"("crc32c_of_bytes_before":"u4@252","claimed":"u8@256","names_used":"u8@264",)"
    R"("names_lost":"u8@272","closed":"u8@280","beat_ns":"i8@288"},)"
    R"("name":{"crc32c_of_what_follows":"u4@0","type":"u2@4","length":"u2@6","id":"u4@8",)"
    R"("types":{"1":"series","2":"word","3":"group"}},)"
    R"("slot":{"seq":"u8@0","time_ns":"i8@8","type":"u2@16","detail":"u2@18","id":"u4@20",)"
    R"("window":"i8@24","step":"i8@32","accum":"i4@40","call":"i4@44","number":"u8@48",)"
    R"("count":"i8@56","nans":"i8@64","infs":"i8@72","values":"4f8@80","flags":"u4@112",)"
    R"("optimizer":"i4@116","group":"u4@120","crc32c_of_bytes_before":"u4@124",)"
    R"("being_written":"bit 63 of seq","types":{"1":"row","2":"outcome","3":"scalar","4":"alert","5":"stage","6":"enter",)"
    R"("7":"leave"},"row_values":["norm","min","max","mean"],)"
    R"("stages":{"1":"forward_begin","2":"forward_end","3":"backward_begin","4":"backward_end",)"
    R"("5":"step_begin","6":"step_end"},"fates":["taken","skipped","unknown"],)"
    R"("collective_detail":{"1":"waits","2":"point_to_point"}},)"
    R"("overwritten":"claimed - slots, when that is positive"})";
static_assert(kDescription.size() <= kHeaderBytes - kDescriptionAt);

}  // namespace trainmon::flight
