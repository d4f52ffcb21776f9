// The kernels of the checks at level avx512.
#define TRAINMON_VECTOR_BYTES 64
#define TRAINMON_KERNELS kAvx512CheckKernels
#include "stats/cpu/check_kernels_source.h"
