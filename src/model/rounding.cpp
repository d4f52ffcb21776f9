// By the bits of the significand and of the exponent.
#include "model/rounding.h"

namespace trainmon {

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return 0x1p-53;
    case DType::float32:
      return 0x1p-24;
    case DType::float16:
      return 0x1p-11;
    case DType::bfloat16:
      return 0x1p-8;  // seven stored bits of the significand
    case DType::float8_e4m3fn:
      return 0x1p-4;
    case DType::float8_e5m2:
      return 0x1p-3;
    default:
      return 0.0;
  }
}

double smallest_normal(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return 0x1p-1022;
    case DType::float16:
      return 0x1p-14;
    case DType::float8_e4m3fn:
      return 0x1p-6;
    case DType::float8_e5m2:
      return 0x1p-14;
    default:
      return 0x1p-126;  // float32, bfloat16
  }
}

}  // namespace trainmon
