// The bytes are taken as those of a stranger. Memory follows the size of the file, and a number
// that leads somewhere is held against what is there.
#include "read/index_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <limits>
#include <utility>

#include "read/log_decode.h"
#include "read/read_series.h"
#include "sinks/compress.h"
#include "sinks/log_encode.h"
#include "sinks/log_format.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;
using namespace log_format;

constexpr std::string_view kIndexMagic = "TMIDX\r\n\x1a";
// Another one, whenever the first pass would find something else in the same segment.
constexpr std::uint16_t kIndexVersion = 1;
constexpr std::size_t kChecksumBytes = sizeof(std::uint64_t);
constexpr std::size_t kPieceBytes = std::size_t{1} << 18;

// Bytes that a place, and what a batch holds besides rows, take at least.
constexpr std::size_t kLeastPlace = 7;
constexpr std::size_t kLeastRecords = 18;

enum PlaceBits : std::uint8_t { kBadRows = 1, kRecords = 2, kSameSeries = 4 };

void append_windows(ByteWriter& writer, const LogContents& contents) {
  writer.varint(contents.windows.size());
  std::pair<std::int32_t, std::int64_t> last = {0, 0};
  contents.windows.for_each([&](std::int32_t optimizer, std::int64_t window) {
    writer.signed_varint(std::int64_t{optimizer} - last.first);
    writer.signed_varint(static_cast<std::int64_t>(static_cast<std::uint64_t>(window) -
                                                   static_cast<std::uint64_t>(last.second)));
    last = {optimizer, window};
  });
}

void append_places(ByteWriter& writer, const SegmentIndex& index) {
  writer.varint(index.places.size());
  writer.varint(index.contents.batches.size());
  BatchPlace last;
  for (const BatchPlace& place : index.places) {
    const BatchFacts& facts = place.facts;
    writer.varint(static_cast<std::uint64_t>(place.offset - last.offset));
    if (place.offset != last.offset) writer.varint(place.stored);
    writer.signed_varint(static_cast<std::int64_t>(place.number - last.number));
    writer.varint(static_cast<std::uint64_t>(facts.rows));
    writer.varint(static_cast<std::uint64_t>(facts.payloads));
    writer.signed_varint(
        static_cast<std::int64_t>(static_cast<std::uint64_t>(facts.first_window) -
                                  static_cast<std::uint64_t>(last.facts.first_window)));
    writer.signed_varint(static_cast<std::int64_t>(static_cast<std::uint64_t>(facts.last_window) -
                                                   static_cast<std::uint64_t>(facts.first_window)));
    const bool has_records = place.batch != BatchPlace::kNoBatch;
    const bool same_series = facts.series == last.facts.series;
    writer.fixed(static_cast<std::uint8_t>((facts.has_bad_rows ? kBadRows : 0) |
                                           (has_records ? kRecords : 0) |
                                           (same_series ? kSameSeries : 0)));
    if (!same_series) writer.fixed(facts.series);
    if (has_records) {
      std::string records;
      append_batch_without_rows(records, index.contents.batches[place.batch]);
      writer.text(records);
    }
    last = place;
  }
}

std::int64_t sum(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

bool read_series(ByteReader& reader, LogContents& contents, Allowance& nothing) {
  const std::string_view bytes = reader.text();
  if (bytes.empty()) return reader.ok();
  std::optional<LogFrame> frame = frame_at(bytes, 0);
  if (!frame || frame->header.type != static_cast<std::uint8_t>(FrameType::series)) return false;
  std::string unpacked, why;
  FrameBounds bounds(frame->header.stored, nothing);
  return unpack(*frame, unpacked, bounds, why) &&
         decode_series(frame->payload, contents.series.own(), bounds, why);
}

bool read_windows(ByteReader& reader, LogContents& contents) {
  std::pair<std::int32_t, std::int64_t> last = {0, 0};
  for (std::uint64_t count = reader.varint(); count > 0 && reader.ok(); --count) {
    last.first = static_cast<std::int32_t>(sum(last.first, reader.signed_varint()));
    last.second = sum(last.second, reader.signed_varint());
    contents.windows.insert(last.first, last.second);
  }
  return reader.ok();
}

// What a batch holds besides rows.
bool read_records(ByteReader& reader, BatchPlace& place, LogContents& contents,
                  Allowance& nothing) {
  const std::string_view bytes = reader.text();
  FrameBounds bounds(bytes.size(), nothing);
  std::string why;
  RecordBatch& batch = contents.batches.emplace_back();
  if (!reader.ok() || !decode_batch(bytes, batch, bounds, why, Columns())) return false;
  if (batch.number != place.number || !batch.rows.empty() || !batch.payloads.empty()) return false;
  place.batch = contents.batches.size() - 1;
  return std::ranges::all_of(
      batch.alerts, [&](const Alert& alert) { return contents.series.contains(alert.key.series); });
}

// A row and a batch take a byte of their frame at least.
bool read_places(ByteReader& reader, std::int64_t segment_bytes, SegmentIndex& index,
                 Allowance& nothing) {
  const std::uint64_t count = reader.varint(), with_records = reader.varint();
  if (count > reader.left() / kLeastPlace || with_records > reader.left() / kLeastRecords) {
    return false;
  }
  index.places.reserve(count);
  index.contents.batches.reserve(with_records);
  BatchPlace place;
  place.is_believed = false;
  for (std::uint64_t left = count; left > 0 && reader.ok(); --left) {
    BatchFacts& facts = place.facts;
    const std::uint64_t ahead = reader.varint();
    if (ahead > static_cast<std::uint64_t>(segment_bytes - place.offset)) return false;
    place.offset += static_cast<std::int64_t>(ahead);
    if (ahead > 0) {
      const std::uint64_t stored = reader.varint();
      const std::int64_t room =
          segment_bytes - place.offset - static_cast<std::int64_t>(kFrameHeaderBytes);
      if (room < 0 || stored > std::min<std::uint64_t>(static_cast<std::uint64_t>(room),
                                                       std::numeric_limits<std::uint32_t>::max())) {
        return false;
      }
      place.stored = static_cast<std::uint32_t>(stored);
    }
    place.number += static_cast<std::uint64_t>(reader.signed_varint());
    const std::uint64_t rows = reader.varint(), payloads = reader.varint();
    if (rows > place.stored || payloads > place.stored) return false;
    facts.rows = static_cast<std::int64_t>(rows);
    facts.payloads = static_cast<std::int64_t>(payloads);
    facts.first_window = sum(facts.first_window, reader.signed_varint());
    facts.last_window = sum(facts.first_window, reader.signed_varint());
    const auto bits = reader.fixed<std::uint8_t>();
    facts.has_bad_rows = (bits & kBadRows) != 0;
    if ((bits & kSameSeries) == 0) facts.series = reader.fixed<std::uint64_t>();
    place.batch = BatchPlace::kNoBatch;
    if ((bits & kRecords) != 0 && !read_records(reader, place, index.contents, nothing)) {
      return false;
    }
    index.places.push_back(place);
    index.contents.rows += facts.rows + facts.payloads;
    index.contents.payloads += facts.payloads;
  }
  index.contents.batch_count = std::ssize(index.places);
  return reader.ok() && index.places.size() == count;
}

void append_index_key(ByteWriter& writer, const IndexKey& key) {
  writer.fixed(key.number);
  writer.fixed(key.rank);
  writer.fixed(key.restart);
  writer.fixed(key.said_bytes);
  writer.fixed(key.bytes);
  writer.fixed(key.digest);
}

// Takes what stands before the body; nullopt where it is that of another version.
std::optional<IndexKey> read_index_key(ByteReader& reader) {
  if (reader.take(kIndexMagic.size()) != kIndexMagic) return std::nullopt;
  if (reader.fixed<std::uint16_t>() != kIndexVersion) return std::nullopt;
  IndexKey key;
  key.number = reader.fixed<std::int32_t>();
  key.rank = reader.fixed<std::int32_t>();
  key.restart = reader.fixed<std::int32_t>();
  key.said_bytes = reader.fixed<std::int64_t>();
  key.bytes = reader.fixed<std::int64_t>();
  key.digest = reader.fixed<std::uint64_t>();
  return reader.ok() && key.bytes >= 0 ? std::optional(key) : std::nullopt;
}

// Of the file as it is now.
std::optional<std::uint64_t> digest_of(const File& file, const fs::path& path, std::int64_t bytes) {
  ContentDigest digest;
  std::string piece(kPieceBytes, '\0');
  std::int64_t offset = 0;
  for (std::size_t got = piece.size(); got == piece.size();
       offset += static_cast<std::int64_t>(got)) {
    got = read_at(file, offset, piece.data(), piece.size(), path);
    digest.add(std::string_view(piece).substr(0, got));
  }
  return offset == bytes ? std::optional(digest.value()) : std::nullopt;
}

}  // namespace

void ContentDigest::add(std::string_view bytes) {
  // Each step can be undone, so a change of one word never gets lost.
  const auto mix = [](std::uint64_t& lane, const char* from, std::size_t count) {
    std::uint64_t word = 0;
    std::memcpy(&word, from, count);
    lane = std::rotl((lane ^ word) * 0x9E3779B97F4A7C15u, 29);
  };
  size_ += bytes.size();
  for (; bytes.size() >= 32; bytes.remove_prefix(32)) {
    for (std::size_t i = 0; i < 4; ++i) mix(lanes_[i], bytes.data() + 8 * i, 8);
  }
  for (std::size_t i = 0; !bytes.empty(); ++i) {
    const std::size_t count = std::min<std::size_t>(8, bytes.size());
    mix(lanes_[i], bytes.data(), count);
    bytes.remove_prefix(count);
  }
}

std::uint64_t ContentDigest::value() const {
  std::uint64_t value = size_;
  for (const std::uint64_t lane : lanes_) {
    value = std::rotl((value ^ lane) * 0xD6E8FEB86659FD93u, 31);
  }
  return value ^ value >> 29;
}

std::uint64_t content_digest(std::string_view bytes) {
  ContentDigest digest;
  digest.add(bytes);
  return digest.value();
}

fs::path index_path(const fs::path& segment) {
  fs::path path = segment;
  return path.replace_extension(kIndexExtension);
}

std::string index_bytes(const IndexKey& key, const SegmentIndex& index) {
  std::string body;
  ByteWriter writer(body);
  writer.fixed(index.contents.last_time_ns);
  std::string series;
  ReadSeries(index.contents.series).append_frame(series, 0);
  writer.text(series);
  append_windows(writer, index.contents);
  append_places(writer, index);
  const std::optional<std::string> packed = compressed(body);
  std::string bytes(kIndexMagic);
  ByteWriter out(bytes);
  out.fixed(kIndexVersion);
  append_index_key(out, key);
  out.fixed(static_cast<std::uint64_t>(body.size()));
  out.fixed(static_cast<std::uint8_t>(packed ? Codec::zstd : Codec::none));
  bytes += packed ? *packed : body;
  out.fixed(content_digest(bytes));
  return bytes;
}

std::optional<IndexKey> key_of_index(std::string_view bytes) {
  ByteReader reader(bytes);
  return read_index_key(reader);
}

std::optional<SegmentIndex> index_of(std::string_view bytes) {
  if (bytes.size() < kChecksumBytes) return std::nullopt;
  ByteReader checksum(bytes.substr(bytes.size() - kChecksumBytes));
  bytes.remove_suffix(kChecksumBytes);
  if (checksum.fixed<std::uint64_t>() != content_digest(bytes)) return std::nullopt;
  ByteReader reader(bytes);
  const std::optional<IndexKey> key = read_index_key(reader);
  if (!key) return std::nullopt;
  const auto size = reader.fixed<std::uint64_t>();
  const auto codec = static_cast<Codec>(reader.fixed<std::uint8_t>());
  std::string_view body = reader.take(reader.left());
  std::string unpacked;
  if (size > static_cast<std::uint64_t>(key->bytes)) return std::nullopt;
  if (codec == Codec::zstd) {
    if (!decompress(body, size, unpacked)) return std::nullopt;
    body = unpacked;
  } else if (codec != Codec::none || size != body.size()) {
    return std::nullopt;
  }
  Allowance nothing(0);
  SegmentIndex index;
  index.contents.files = 1;
  index.contents.bytes = key->bytes;
  ByteReader rest(body);
  index.contents.last_time_ns = rest.fixed<std::int64_t>();
  const bool is_sound = read_series(rest, index.contents, nothing) &&
                        read_windows(rest, index.contents) &&
                        read_places(rest, key->bytes, index, nothing) && rest.left() == 0;
  return is_sound ? std::optional(std::move(index)) : std::nullopt;
}

std::optional<SegmentIndex> read_index(const SegmentName& segment, std::int64_t said_bytes,
                                       const File& file) {
  const std::int64_t size = linked_size(file, segment.path);
  std::string bytes;
  try {
    bytes = read_file(index_path(segment.path), std::max<std::int64_t>(0, size));
  } catch (const SinkError&) {
    return std::nullopt;  // none, or none that may be read
  }
  IndexKey key{segment.number, segment.rank, segment.restart, said_bytes, size, 0};
  const std::optional<IndexKey> said = key_of_index(bytes);
  if (!said) return std::nullopt;
  key.digest = said->digest;
  if (*said != key || digest_of(file, segment.path, size) != key.digest) return std::nullopt;
  return index_of(bytes);
}

void write_index(const SegmentName& segment, std::int64_t said_bytes, const File& file,
                 std::string_view content, const SegmentIndex& index) noexcept {
  if (!index.contents.damage.empty() || index.contents.torn_tails > 0 || index.took_allowance) {
    return;
  }
  const fs::path path = index_path(segment.path);
  try {
    const IndexKey key{segment.number, segment.rank,        segment.restart,
                       said_bytes,     std::ssize(content), content_digest(content)};
    const std::string bytes = index_bytes(key, index);
    if (bytes.size() > content.size() || !index_of(bytes)) return;
    write_atomically(path, bytes);
    // Deleted meanwhile: then the index was to go with it.
    if (linked_size(file, segment.path) < 0) ::unlink(path.c_str());
  } catch (const std::exception&) {
    // Whoever reads next finds all of it again.
  }
}

}  // namespace trainmon
