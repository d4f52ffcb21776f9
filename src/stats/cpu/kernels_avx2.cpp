// The block kernels at level avx2.
#define TRAINMON_VECTOR_BYTES 32
#define TRAINMON_KERNELS kAvx2Kernels
#include "stats/cpu/kernels_source.h"
