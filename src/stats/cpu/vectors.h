// Vectors as wide as the level's registers, for the sources compiled once per level: they define
// TRAINMON_VECTOR_BYTES first. All names are local to the file that includes this one.
#pragma once

namespace trainmon::cpu {
namespace {

template <class T, int bytes>
struct VectorOf {
  typedef T type __attribute__((vector_size(bytes)));
};
template <class T>
using Vector = typename VectorOf<T, TRAINMON_VECTOR_BYTES>::type;

template <class To>
inline To load(const void* from) {
  To value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

}  // namespace
}  // namespace trainmon::cpu
