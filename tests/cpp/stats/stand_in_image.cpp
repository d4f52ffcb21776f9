// The image of a program that is linked with the driver stand-in, which loads anything.
#include "stats/cuda/image.h"

namespace trainmon::cuda {

std::span<const std::byte> image() {
  static constexpr std::byte bytes[16] = {};
  return bytes;
}
std::span<const std::byte> checked_image() {
  return image();
}

}  // namespace trainmon::cuda
