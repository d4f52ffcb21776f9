// The fat binary that nvcc made of measure.cu, as bytes of this library.
#include "stats/cuda/image.h"

asm(".section .rodata\n"
    ".balign 16\n"
    ".local trainmon_cuda_image\n"
    "trainmon_cuda_image:\n"
    ".incbin \"" TRAINMON_CUDA_IMAGE
    "\"\n"
    ".local trainmon_cuda_image_end\n"
    "trainmon_cuda_image_end:\n"
    ".byte 0\n"
    ".previous\n");

extern "C" {
extern const std::byte trainmon_cuda_image[];
extern const std::byte trainmon_cuda_image_end[];
}

namespace trainmon::cuda {

std::span<const std::byte> image() {
  return {trainmon_cuda_image, trainmon_cuda_image_end};
}

std::string_view architectures() {
  return TRAINMON_CUDA_ARCHITECTURES;
}

}  // namespace trainmon::cuda
