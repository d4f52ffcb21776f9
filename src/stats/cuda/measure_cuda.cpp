// Measuring on a device outside a monitor.
#include "stats/cuda/measure_cuda.h"

#include <chrono>
#include <stdexcept>
#include <thread>

#include "stats/cuda/device.h"

namespace trainmon {

std::string cuda_unavailable(int device) {
  std::string why;
  cuda::CudaDevice::of(device, why);
  return why;
}

void measure_cuda(std::span<const TensorView> tensors, std::span<RowState> out, double eps) {
  if (tensors.size() != out.size()) throw std::invalid_argument("as many states as tensors");
  if (tensors.empty()) return;
  std::string why;
  cuda::Pieces pieces;
  for (const TensorView& tensor : tensors) {
    if (tensor.device != Device::cuda || tensor.device_index != tensors[0].device_index) {
      throw std::invalid_argument("the tensors are not on one CUDA device");
    }
    const char* refusal = cuda::describe(tensor, pieces);
    if (refusal != nullptr) throw std::invalid_argument(refusal);
  }
  cuda::CudaDevice* device = cuda::CudaDevice::of(tensors[0].device_index, why);
  if (device == nullptr) throw std::runtime_error(why);
  const cuda::Launched launched = device->launch(pieces, eps, tensors[0].stream, nullptr);
  if (!launched) throw std::runtime_error(launched.why);
  while (!launched.launch->ready()) std::this_thread::sleep_for(std::chrono::microseconds(20));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = launched.launch->state(i);
}

}  // namespace trainmon
