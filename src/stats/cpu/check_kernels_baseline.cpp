// The kernels of the checks at level baseline.
#define TRAINMON_VECTOR_BYTES 16
#define TRAINMON_KERNELS kBaselineCheckKernels
#include "stats/cpu/check_kernels_source.h"
