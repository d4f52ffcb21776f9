// The kernels of the probe at level avx2.
#define TRAINMON_VECTOR_BYTES 32
#define TRAINMON_KERNELS kAvx2ProbeKernels
#include "stats/cpu/probe_kernels_source.h"
