// A frame is believed when both of its checksums hold. After anything else the next such frame is
// looked for, so that one fault never costs more than the frames it touches.
#include "read/log_scan.h"

#include <algorithm>

#include "base/crc32c.h"
#include "base/text.h"
#include "sinks/compress.h"

namespace trainmon {
namespace {

using namespace log_format;

std::string preamble() {
  std::string bytes(kMagic);
  ByteWriter writer(bytes);
  writer.fixed(kByteOrder);
  writer.fixed(kMajor);
  return bytes;  // the minor version may be any
}

std::optional<FrameHeader> header_at(std::string_view bytes, std::size_t at) {
  if (at > bytes.size() || bytes.size() - at < kFrameHeaderBytes) return std::nullopt;
  const std::string_view raw = bytes.substr(at, kFrameHeaderBytes);
  if (!raw.starts_with(kFrameMagic)) return std::nullopt;
  ByteReader reader(raw.substr(kFrameMagic.size()));
  FrameHeader header;
  header.type = reader.fixed<std::uint8_t>();
  header.codec = reader.fixed<std::uint8_t>();
  reader.fixed<std::uint16_t>();
  header.stored = reader.fixed<std::uint32_t>();
  header.raw = reader.fixed<std::uint32_t>();
  header.number = reader.fixed<std::uint32_t>();
  header.payload_crc = reader.fixed<std::uint32_t>();
  if (crc32c(raw.substr(0, kFrameHeaderBytes - 4)) != reader.fixed<std::uint32_t>()) {
    return std::nullopt;
  }
  return header;
}

std::size_t next_frame(std::string_view bytes, std::size_t from) {
  for (std::size_t at = bytes.find(kFrameMagic, from); at != std::string_view::npos;
       at = bytes.find(kFrameMagic, at + 1)) {
    if (frame_at(bytes, at)) return at;
  }
  return std::string_view::npos;
}

// Whether these last bytes may be what an unfinished write leaves. That is the beginning of a
// frame, or nothing but zeros (a file whose size reached the disk before its content).
bool is_unfinished_write(std::string_view rest) {
  if (rest.find_first_not_of('\0') == std::string_view::npos) return true;
  if (rest.size() < kFrameHeaderBytes) {
    return rest.substr(0, kFrameMagic.size()) == kFrameMagic.substr(0, rest.size());
  }
  const std::optional<FrameHeader> header = header_at(rest, 0);
  return header && header->stored > rest.size() - kFrameHeaderBytes;
}

void check_preamble(std::string_view bytes, SegmentScan& scan) {
  const std::string expected = preamble();
  if (bytes.starts_with(expected)) return;
  std::string what =
      "the first bytes are not those of a trainmon log of format version " + std::to_string(kMajor);
  if (bytes.starts_with(kMagic)) {
    ByteReader reader(bytes.substr(kMagic.size()));
    const auto order = reader.fixed<std::uint32_t>();
    const auto major = reader.fixed<std::uint16_t>();
    what = order == kByteOrder ? "format version " + std::to_string(major) +
                                     ", this reader knows " + std::to_string(kMajor)
                               : "unknown byte order";
  }
  scan.faults.push_back({0, what});
}

// Puts frames in order of their numbers and reports what is not as it was written.
void order_frames(SegmentScan& scan, const std::vector<bool>& follows_fault,
                  std::uint32_t expected) {
  std::vector<LogFrame>& frames = scan.frames;
  for (std::size_t i = 0; i < frames.size(); ++i) {
    const std::uint32_t number = frames[i].header.number;
    if (number > expected && !follows_fault[i]) {
      scan.faults.push_back({frames[i].offset, "frames " + std::to_string(expected) + " to " +
                                                   std::to_string(number - 1) +
                                                   " are missing before this one"});
    }
    if (number < expected) {
      scan.faults.push_back(
          {frames[i].offset, "frame " + std::to_string(number) + " is repeated or out of order"});
    }
    expected = std::max(expected, number + 1);
  }
  const auto by_number = [](const LogFrame& a, const LogFrame& b) {
    return a.header.number < b.header.number;
  };
  std::stable_sort(frames.begin(), frames.end(), by_number);
  const auto same_number = [](const LogFrame& a, const LogFrame& b) {
    return a.header.number == b.header.number;
  };
  frames.erase(std::unique(frames.begin(), frames.end(), same_number), frames.end());
}

// Everything from bytes[at], where a frame with the number `expected` should begin.
void scan_frames(std::string_view bytes, std::size_t at, std::uint32_t expected,
                 SegmentScan& scan) {
  std::vector<bool> follows_fault;
  bool is_clean = true;
  scan.end = at;
  while (at < bytes.size()) {
    if (const std::optional<LogFrame> frame = frame_at(bytes, at)) {
      scan.frames.push_back(*frame);
      follows_fault.push_back(!is_clean);
      is_clean = true;
      at += kFrameHeaderBytes + frame->header.stored;
      scan.end = at;
      continue;
    }
    is_clean = false;
    const std::size_t next = next_frame(bytes, at + 1);
    const std::string_view rest = bytes.substr(at);
    if (next == std::string_view::npos && is_unfinished_write(rest)) {
      scan.is_torn = true;
      break;
    }
    const std::size_t end = std::min(next, bytes.size());
    scan.faults.push_back(
        {static_cast<std::int64_t>(at), std::to_string(end - at) + " bytes fail their checksum"});
    at = end;
  }
  order_frames(scan, follows_fault, expected);
}

}  // namespace

std::optional<LogFrame> frame_at(std::string_view bytes, std::size_t at) {
  const std::optional<FrameHeader> header = header_at(bytes, at);
  if (!header || header->stored > bytes.size() - at - kFrameHeaderBytes) return std::nullopt;
  const std::string_view payload = bytes.substr(at + kFrameHeaderBytes, header->stored);
  if (crc32c(payload) != header->payload_crc) return std::nullopt;
  return LogFrame{*header, static_cast<std::int64_t>(at), payload};
}

SegmentScan scan_segment(std::string_view bytes) {
  SegmentScan scan;
  const bool is_begun =
      bytes.size() < kPreambleBytes && preamble().starts_with(bytes.substr(0, preamble().size()));
  if (is_begun || bytes.find_first_not_of('\0') == std::string_view::npos) {
    scan.is_torn = true;
    return scan;
  }
  check_preamble(bytes, scan);
  scan_frames(bytes, kPreambleBytes, 0, scan);
  return scan;
}

SegmentScan scan_rest(std::string_view bytes, std::int64_t offset, std::uint32_t frames) {
  SegmentScan scan;
  scan_frames(bytes, 0, frames, scan);
  for (LogFrame& frame : scan.frames) frame.offset += offset;
  for (ScanFault& fault : scan.faults) fault.offset += offset;
  return scan;
}

bool unpack(LogFrame& frame, std::string& unpacked, FrameBounds& bounds, std::string& why) {
  const auto codec = static_cast<Codec>(frame.header.codec);
  const bool is_group = frame.header.type == static_cast<std::uint8_t>(FrameType::group);
  if (codec == Codec::none || (codec == Codec::parts && is_group && has_zstd())) return true;
  if (codec == Codec::zstd && has_zstd() && !bounds.takes_bytes(frame.header.raw)) {
    why = "the frame unpacks to " + grouped(frame.header.raw) + " bytes, more than its " +
          grouped(frame.header.stored) + " can hold";
    return false;
  }
  if (codec != Codec::zstd || frame.header.raw > kMaxPayload ||
      !decompress(frame.payload, frame.header.raw, unpacked)) {
    why = codec == Codec::zstd && has_zstd()
              ? "the frame cannot be decompressed"
              : "compressed with codec " + std::to_string(frame.header.codec) +
                    ", which this build of trainmon cannot read (1 is zstd)";
    return false;
  }
  frame.payload = unpacked;
  return true;
}

}  // namespace trainmon
