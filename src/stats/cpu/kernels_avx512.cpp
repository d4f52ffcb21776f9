// The block kernels at level avx512.
#define TRAINMON_VECTOR_BYTES 64
#define TRAINMON_KERNELS kAvx512Kernels
#include "stats/cpu/kernels_source.h"
