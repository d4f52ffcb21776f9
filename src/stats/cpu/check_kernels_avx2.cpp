// The kernels of the checks at level avx2.
#define TRAINMON_VECTOR_BYTES 32
#define TRAINMON_KERNELS kAvx2CheckKernels
#include "stats/cpu/check_kernels_source.h"
