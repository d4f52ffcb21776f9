// The fat binaries that nvcc made of the kernels, as bytes of this library.
#include "stats/cuda/image.h"

#define TRAINMON_BYTES_OF(NAME, PATH) \
  asm(".section .rodata\n"            \
      ".balign 16\n"                  \
      ".local " NAME "\n" NAME        \
      ":\n"                           \
      ".incbin \"" PATH               \
      "\"\n"                          \
      ".local " NAME "_end\n" NAME    \
      "_end:\n"                       \
      ".byte 0\n"                     \
      ".previous\n")
TRAINMON_BYTES_OF("trainmon_cuda_image", TRAINMON_CUDA_IMAGE);
TRAINMON_BYTES_OF("trainmon_cuda_checked", TRAINMON_CUDA_CHECKED_IMAGE);

extern "C" {
extern const std::byte trainmon_cuda_image[];
extern const std::byte trainmon_cuda_image_end[];
extern const std::byte trainmon_cuda_checked[];
extern const std::byte trainmon_cuda_checked_end[];
}

namespace trainmon::cuda {

std::span<const std::byte> image() {
  return {trainmon_cuda_image, trainmon_cuda_image_end};
}

std::span<const std::byte> checked_image() {
  return {trainmon_cuda_checked, trainmon_cuda_checked_end};
}

}  // namespace trainmon::cuda
