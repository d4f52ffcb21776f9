// The compiled kernels, if this build has any.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace trainmon::cuda {

// A fat binary for the driver to load; empty in a build without nvcc.
std::span<const std::byte> image();
// The same with the kernel that takes step checks: loaded when somebody asks for them.
std::span<const std::byte> checked_image();
// "sm_80 sm_90 sm_100", the architectures in it; "" without one.
std::string_view architectures();

}  // namespace trainmon::cuda
