// The yardstick of bench_cuda.py: CUB's sum over one flat buffer. Built by it with
// nvcc -shared; called through ctypes.
#include <cuda_bf16.h>

#include <cub/device/device_reduce.cuh>

namespace {

struct Widen {
  __host__ __device__ float operator()(__nv_bfloat16 x) const { return __bfloat162float(x); }
};

}  // namespace

// Bytes of `scratch` needed, when it is null. `out` is one float on the device. 0 or an error.
extern "C" int cub_sum(const void* data, long long n, int is_bfloat16, float* out, void* scratch,
                       size_t* bytes, void* stream) {
  const auto at = static_cast<cudaStream_t>(stream);
  if (is_bfloat16 != 0) {
    return cub::DeviceReduce::TransformReduce(scratch, *bytes,
                                              static_cast<const __nv_bfloat16*>(data), out, n,
                                              ::cuda::std::plus<float>{}, Widen{}, 0.0f, at);
  }
  return cub::DeviceReduce::Sum(scratch, *bytes, static_cast<const float*>(data), out, n, at);
}
