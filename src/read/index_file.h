// The file beside a segment of a log that keeps what the first pass found there (docs/formats.md).
// It is used where it says the very bytes that the segment has, and is written by whoever reads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/file.h"
#include "read/segment_index.h"

namespace trainmon {

// Of bytes, as they come. No protection against somebody who wants two that have the same.
class ContentDigest {
 public:
  // Pieces before the last have a multiple of 32 bytes.
  void add(std::string_view bytes);
  std::uint64_t value() const;

 private:
  std::uint64_t lanes_[4] = {1, 2, 3, 4};
  std::uint64_t size_ = 0;
};
std::uint64_t content_digest(std::string_view bytes);

// All that an index of a segment follows from.
struct IndexKey {
  std::int32_t number = 0;
  std::int32_t rank = 0;
  std::int32_t restart = 0;
  std::int64_t said_bytes = -1;  // of it that are sound, as the next segment says; -1: nobody says
  std::int64_t bytes = 0;        // of the file
  std::uint64_t digest = 0;      // of its content
  bool operator==(const IndexKey&) const = default;
};

// "log-000012.tmindex" beside "log-000012.tmlog".
std::filesystem::path index_path(const std::filesystem::path& segment);

std::string index_bytes(const IndexKey& key, const SegmentIndex& index);
// What such bytes say they are an index of; nullopt where they are none that this version wrote.
std::optional<IndexKey> key_of_index(std::string_view bytes);
// The other way. nullopt where a number is beyond what a segment of that size can hold, or refers
// to nothing. The places are not believed; there is no damage. Takes memory by the size that the
// key says.
std::optional<SegmentIndex> index_of(std::string_view bytes);

// The index of an open segment from the file beside it; nullopt where there is none of these bytes.
// Throws SinkError where the segment cannot be read.
std::optional<SegmentIndex> read_index(const SegmentName& segment, std::int64_t said_bytes,
                                       const File& file);
// Keeps it, where it has no damage and this process may write there; else does nothing. `file` has
// had the content.
void write_index(const SegmentName& segment, std::int64_t said_bytes, const File& file,
                 std::string_view content, const SegmentIndex& index) noexcept;

}  // namespace trainmon
