// The kernels of fingerprint and sketch on their own, for blocks that no kernel of kernels.h
// takes whole. Their table for each instruction-set level is here, too.
#pragma once

#include <cstdint>

namespace trainmon::cpu {

// The factors of an UpdateFormula (stats/update.h).
struct UpdateFactors {
  double a;
  double b;
  double c;
  double eps;
};

// `data` needs no alignment. The same bits on every level. The caller keeps subnormal numbers
// (FloatMode).
struct CheckKernels {
  // Of `rows` rows of 64 bytes; data[0] is in row `first_row` of the full tensor.
  std::uint64_t (*fingerprint)(const void* data, std::int64_t rows, std::uint64_t first_row);
  // Adds n elements to the sixteen lanes of the sketch; data[0] has the index `first` in the full
  // tensor.
  void (*sketch_float32)(const void* data, std::int64_t n, std::int64_t first, double* lanes);
  void (*sketch_float64)(const void* data, std::int64_t n, std::int64_t first, double* lanes);
  void (*float32_of_float16)(const void* data, std::int64_t n, float* out);
  // Of the tensors x, y and s of an UpdateFormula; null pointers for those that it has not.
  void (*update_float32)(const float* const* in, const UpdateFactors& factors, std::int64_t n,
                         float* out);
  void (*update_float64)(const double* const* in, const UpdateFactors& factors, std::int64_t n,
                         double* out);
};

extern const CheckKernels kBaselineCheckKernels;
extern const CheckKernels kAvx2CheckKernels;
extern const CheckKernels kAvx512CheckKernels;

// The kernels of cpu_level().
const CheckKernels& check_kernels();

}  // namespace trainmon::cpu
