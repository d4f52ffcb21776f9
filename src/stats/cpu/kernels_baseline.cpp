// The block kernels at level baseline.
#define TRAINMON_VECTOR_BYTES 16
#define TRAINMON_KERNELS kBaselineKernels
#include "stats/cpu/kernels_source.h"
