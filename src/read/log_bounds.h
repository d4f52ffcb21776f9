// What a frame may hold, by what it takes of the file (docs/formats.md). A few bytes can unpack
// to very many, and nobody has to have written them with our writer.
#pragma once

#include <atomic>
#include <cstdint>

namespace trainmon {

inline constexpr const char* kTooManyRecords =
    "it holds more records than its bytes in the file can";

// What all frames of a run together may hold beyond their bounds: those of former versions, which
// packed zeros as far as they would go. Any thread.
class Allowance {
 public:
  static constexpr std::uint64_t kBytes = std::uint64_t{64} << 20;
  explicit Allowance(std::uint64_t bytes = kBytes) : left_(bytes) {}
  // False when so many bytes are not left; then none are taken.
  bool take(std::uint64_t bytes);
  // Whether take() ever returned false: then it may have been another one's turn.
  bool is_exhausted() const { return is_exhausted_; }
  void renew();

 private:
  std::atomic<std::uint64_t> left_;
  std::atomic<bool> is_exhausted_{false};
};

// Counts what is unpacked from one frame. Without an allowance there are no bounds: for frames that
// were let through before.
class FrameBounds {
 public:
  FrameBounds() = default;
  FrameBounds(std::uint64_t stored, Allowance& allowance)
      : stored_(stored), allowance_(&allowance) {}

  // Each is asked before memory is taken; after false the frame is not used.
  bool takes_bytes(std::uint64_t unpacked);
  bool takes_records(std::uint64_t count);
  // Something was beyond the bounds, and was let through.
  bool took_allowance() const { return took_allowance_; }

 private:
  bool takes_beyond(std::uint64_t bytes);

  std::uint64_t stored_ = 0;
  Allowance* allowance_ = nullptr;
  std::uint64_t records_ = 0;
  bool took_allowance_ = false;
};

}  // namespace trainmon
