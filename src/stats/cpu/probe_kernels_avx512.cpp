// The kernels of the probe at level avx512.
#define TRAINMON_VECTOR_BYTES 64
#define TRAINMON_KERNELS kAvx512ProbeKernels
#include "stats/cpu/probe_kernels_source.h"
