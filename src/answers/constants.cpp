#include "answers/constants.h"

#include <cstddef>

namespace trainmon {
namespace {

constexpr double kLeastShare = 1e-3;  // a number that becomes 0 by rounding is rare
constexpr double kHaving = 0.8;       // of the rows
constexpr double kOfFlags = 1.0;

}  // namespace

void NewZeros::add(const RowPlace& place, double share) {
  has_ended_ |= found_ || share < kLeastShare;
  if (has_ended_) return;
  if (rows_++ == 0) {
    first_ = place;
    first_.shape = nullptr;
    of_first_ = share;
  }
  if (rows_ < kRows) return;
  found_ = {{0.0, 0.0, first_, of_first_}, of_first_, static_cast<std::size_t>(kRows), false};
}

void MissingLargest::add(const RowPlace& place, double largest) {
  if (found_) return;
  if (rows_ == 0 || largest > largest_) {
    largest_ = largest;
    rows_ = having_ = 1;
    missing_ = 0;
    return;
  }
  if (largest == largest_) {
    rows_ += missing_ + 1;
    ++having_;
    missing_ = 0;
    return;
  }
  if (missing_++ == 0) {
    first_ = place;
    first_.shape = nullptr;
    of_first_ = largest;
  }
  const bool is_usual = rows_ >= kRows && having_ >= kHaving * rows_ && largest_ > kOfFlags;
  if (missing_ < kMissing || !is_usual) return;
  found_ = {{0.0, largest_, first_, of_first_},
            largest_ - of_first_,
            static_cast<std::size_t>(kMissing),
            false};
}

}  // namespace trainmon
