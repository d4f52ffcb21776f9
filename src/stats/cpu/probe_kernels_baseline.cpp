// The kernels of the probe at level baseline.
#define TRAINMON_VECTOR_BYTES 16
#define TRAINMON_KERNELS kBaselineProbeKernels
#include "stats/cpu/probe_kernels_source.h"
