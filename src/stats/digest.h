// Digests of a tensor, block by block and chunk by chunk. Definitions: trainmon/probe.h.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/md5.h"
#include "stats/cpu/probe_kernels.h"
#include "trainmon/probe.h"

namespace trainmon {

// Whether the elements are digested as float32 instead of as they are stored.
bool digests_float32(Digest digest);
// Whether each chunk needs the one before.
bool digest_is_serial(Digest digest);

// One chunk.
class ChunkDigest {
 public:
  // `md5` takes what the chunk adds where that is the digest.
  ChunkDigest(Digest digest, Md5& md5) : digest_(digest), md5_(md5) {}

  // The next block's bytes; every one but the last of a chunk is whole (kBlock elements).
  void add(std::string_view bytes);
  std::uint64_t finish() const;

 private:
  Digest digest_;
  Md5& md5_;
  std::uint32_t crc_ = 0;
  std::uint64_t bytes_ = 0;
  std::array<std::uint64_t, cpu::kHashLanes> lanes_ = first_lanes();

  static std::array<std::uint64_t, cpu::kHashLanes> first_lanes();
};

// The digest of the tensor, from what its chunks finished with, in order; each has `chunk_bytes`,
// but the last, and all together `bytes`.
std::string join_digests(Digest digest, Md5& md5, std::span<const std::uint64_t> chunks,
                         std::uint64_t chunk_bytes, std::uint64_t bytes);

}  // namespace trainmon
