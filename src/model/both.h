// What makes a function one of the host and of the device.
#pragma once

#if defined(__CUDACC__)
#define TRAINMON_BOTH __host__ __device__ inline
#else
#define TRAINMON_BOTH inline
#endif
