// One byte of the file bears out 64 unpacked bytes and one record.
#include "read/log_bounds.h"

#include <algorithm>

#include "sinks/log_format.h"
#include "trainmon/record.h"

namespace trainmon {
namespace {

// The largest record that lies in a vector; what is in its texts counts as unpacked bytes.
constexpr std::uint64_t kRecordBytes = std::max({sizeof(Row), sizeof(Alert), sizeof(Series)});

}  // namespace

bool Allowance::take(std::uint64_t bytes) {
  std::uint64_t left = left_;
  while (bytes <= left) {
    if (left_.compare_exchange_weak(left, left - bytes)) return true;
  }
  is_exhausted_ = true;
  return false;
}

void Allowance::renew() {
  left_ = kBytes;
  is_exhausted_ = false;
}

bool FrameBounds::takes_beyond(std::uint64_t bytes) {
  if (!allowance_->take(bytes)) return false;
  took_allowance_ = true;
  return true;
}

bool FrameBounds::takes_bytes(std::uint64_t unpacked) {
  const std::uint64_t free = log_format::kMaxRatio * stored_;
  return allowance_ == nullptr || unpacked <= free || takes_beyond(unpacked - free);
}

bool FrameBounds::takes_records(std::uint64_t count) {
  if (allowance_ == nullptr) return true;
  const std::uint64_t before = std::max(records_, stored_);
  records_ += count;
  return records_ <= before || takes_beyond((records_ - before) * kRecordBytes);
}

}  // namespace trainmon
