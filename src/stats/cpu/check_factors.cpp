// The factors of the fingerprint as the kernels read them.
#include "stats/check_keys.h"
#include "stats/cpu/kernels.h"

namespace trainmon::cpu {
namespace {

constexpr FingerprintFactors make_factors() {
  FingerprintFactors factors = {};
  static_assert(sizeof factors.columns / kFingerprintColumns ==
                kFingerprintGroups * sizeof(std::int32_t));
  for (int i = 0; i < kFingerprintGroups * kFingerprintColumns; ++i) {
    factors.columns[i] = fingerprint_column_factor(i);
  }
  static_assert(sizeof factors.rows == kFingerprintRows * sizeof(std::uint32_t));
  for (int i = 0; i < kFingerprintRows; ++i) {
    const auto upper = static_cast<std::uint32_t>(kFingerprintUpper[i]);
    factors.rows[i] = upper << 16 | static_cast<std::uint32_t>(kFingerprintLower[i]);
  }
  return factors;
}

}  // namespace

constinit const FingerprintFactors kFingerprintFactors = make_factors();

}  // namespace trainmon::cpu
