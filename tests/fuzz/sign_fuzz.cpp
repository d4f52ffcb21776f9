// A .sign file.
#include "direction_case.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  trainmon::fuzz::read_directions("w.sign", trainmon::fuzz::text_of(data, size));
  return 0;
}
