// CUDA devices: whether this build measures their tensors with kernels of its own, and doing so
// outside a monitor.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "trainmon/stat.h"
#include "trainmon/tensor.h"

namespace trainmon {

// "sm_80 sm_90 sm_100": what the kernels were compiled for; "" in a build without nvcc.
std::string_view cuda_architectures();
// Why no CUDA driver can be used here; "" when one can. Takes no memory of a device.
std::string cuda_driver_missing();
// Why tensors of this device cannot be measured by kernels here; "" when they can. The first call
// loads the driver and the kernels and takes a few MB of memory.
std::string cuda_unavailable(int device = 0);

// Measures tensors of one CUDA device, all in one launch on the stream of the first, and waits
// for the result. The result is the states that a monitor would record. Any layout and dtype;
// empty tensors are fine. Throws std::invalid_argument for a tensor elsewhere. Throws
// std::runtime_error where cuda_unavailable() says why, while the stream is being captured, and
// when a launch fails.
void measure_cuda(std::span<const TensorView> tensors, std::span<RowState> out,
                  double eps = kDefaultEps);

}  // namespace trainmon
