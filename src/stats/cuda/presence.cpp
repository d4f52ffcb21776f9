// What this build and this machine have for CUDA devices. By itself, so that a program which asks
// that alone has no kernels in it.
#include "stats/cuda/driver.h"
#include "stats/cuda/measure_cuda.h"

namespace trainmon {

std::string_view cuda_architectures() {
  return TRAINMON_CUDA_ARCHITECTURES;
}

std::string cuda_driver_missing() {
  std::string why;
  cuda::Driver::get(why);
  return why;
}

}  // namespace trainmon
