// The one source of the block kernels, compiled once per instruction-set level by the file that
// defines TRAINMON_VECTOR_BYTES and TRAINMON_KERNELS and includes it.
//
// Nothing here, and nothing that it includes, may use an inline function of another header
// (vectors.h and lanes.h have none but local ones). The linker would keep one copy of it, perhaps
// the one compiled for AVX-512, for the whole program.

#include "stats/cpu/half_kernels.h"
#include "stats/cpu/kernels.h"
#include "stats/cpu/wide_kernels.h"

namespace trainmon::cpu {

const Kernels TRAINMON_KERNELS = {
    Wide<float>::block,
    Wide<double>::block,
    [](const void* data, std::int64_t n, std::int16_t threshold) {
      return Half<Bfloat16>::block(data, n, threshold, Bfloat16::kBeyond);
    },
    [](const void* data, std::int64_t n, std::int16_t threshold) {
      return Half<Float16>::block(data, n, threshold, Float16::kBeyond);
    },
    float8<true>,
    float8<false>,
    Wide<float>::checked,
    Wide<double>::checked,
    [](const void* data, std::int16_t threshold, std::int64_t first, CheckSums& check) {
      return Half<Bfloat16>::checked(data, threshold, Bfloat16::kBeyond, first, check);
    },
    [](const void* data, std::int16_t threshold, std::int64_t first, CheckSums& check) {
      return Half<Float16>::checked(data, threshold, Float16::kBeyond, first, check);
    },
    Wide<float>::centred,
    Wide<double>::centred,
};

}  // namespace trainmon::cpu
