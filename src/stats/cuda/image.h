// The compiled kernels, if this build has any.
#pragma once

#include <cstddef>
#include <span>

namespace trainmon::cuda {

// A fat binary for the driver to load; empty in a build without nvcc.
std::span<const std::byte> image();
// The same with the kernel that takes step checks: loaded when somebody asks for them.
std::span<const std::byte> checked_image();

}  // namespace trainmon::cuda
