// MD5 goes on from block to block, CRC-32 and the 64-bit hash are joined from chunks.
#include "stats/digest.h"

#include <algorithm>
#include <cstring>

#include "base/crc32.h"

namespace trainmon {
namespace {

constexpr std::size_t kStripe = sizeof(std::uint64_t) * cpu::kHashLanes;

// What the lanes of the kernel do with each word.
std::uint64_t take(std::uint64_t hash, std::uint64_t word) {
  hash = (hash ^ word) * cpu::kHashFactor;
  return hash ^ (hash >> cpu::kHashShift);
}

std::string hex(std::uint64_t value, int digits) {
  std::string text;
  for (int i = digits - 1; i >= 0; --i) text += "0123456789abcdef"[value >> (4 * i) & 15];
  return text;
}

}  // namespace

bool digests_float32(Digest digest) {
  return digest == Digest::md5 || digest == Digest::crc32;
}

bool digest_is_serial(Digest digest) {
  return digest == Digest::md5;
}

std::array<std::uint64_t, cpu::kHashLanes> ChunkDigest::first_lanes() {
  std::array<std::uint64_t, cpu::kHashLanes> lanes;
  for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i] = (i + 1) * cpu::kHashFactor;
  return lanes;
}

void ChunkDigest::add(std::string_view bytes) {
  bytes_ += bytes.size();
  switch (digest_) {
    case Digest::none:
      break;
    case Digest::md5:
      md5_.add(bytes);
      break;
    case Digest::crc32:
      crc_ = crc32(bytes, crc_);
      break;
    case Digest::fast64: {
      const std::size_t stripes = bytes.size() / kStripe;
      const auto& hash = cpu::probe_kernels().hash;
      hash(bytes.data(), static_cast<std::int64_t>(stripes), lanes_.data());
      bytes.remove_prefix(stripes * kStripe);
      if (bytes.empty()) break;
      std::array<char, kStripe> last = {};
      std::copy(bytes.begin(), bytes.end(), last.begin());
      hash(last.data(), 1, lanes_.data());
    }
  }
}

std::uint64_t ChunkDigest::finish() const {
  if (digest_ == Digest::crc32) return crc_;
  std::uint64_t hash = bytes_;
  for (const std::uint64_t lane : lanes_) hash = take(hash, lane);
  return hash;
}

std::string join_digests(Digest digest, Md5& md5, std::span<const std::uint64_t> chunks,
                         std::uint64_t chunk_bytes, std::uint64_t bytes) {
  switch (digest) {
    case Digest::none:
      return "";
    case Digest::md5:
      return md5.finish();
    case Digest::crc32: {
      std::uint32_t crc = 0;
      for (std::size_t i = 0; i < chunks.size(); ++i) {
        const std::uint64_t size = std::min(chunk_bytes, bytes - i * chunk_bytes);
        crc = crc32_join(crc, static_cast<std::uint32_t>(chunks[i]), size);
      }
      return hex(crc, 8);
    }
    case Digest::fast64: {
      std::uint64_t hash = cpu::kHashFactor;
      for (const std::uint64_t chunk : chunks) hash = take(hash, chunk);
      return hex(take(hash, bytes), 16);
    }
  }
  return "";
}

}  // namespace trainmon
