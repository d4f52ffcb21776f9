// A row, and a declared value, as readers see them: the key joined with the outcome of its window.
#pragma once

#include <cstdint>

#include "trainmon/record.h"

namespace trainmon {

// Which row it is: its key joined with the outcome of its window.
struct RowPlace {
  std::int32_t restart = 0;
  std::int32_t rank = 0;  // -1 for rows merged over ranks
  std::int32_t attempt = 0;
  std::int32_t accum = 0;
  std::int32_t micro_step = 0;  // accum modulo grad_acc_steps where that is known, else accum
  std::int32_t call = 0;
  std::uint32_t flags = 0;
  Fate fate = Fate::unknown;
  std::int64_t window = 0;
  std::int64_t step = 0;
  std::uint64_t seq = 0;
  double loss_scale = 1.0;
  // Of the tensor measured; nullptr: not known. In RunRows::shapes, or where RunStream keeps them.
  const Shape* shape = nullptr;
};

// One row as readers see it.
struct ReadRow : RowPlace {
  std::uint32_t series = 0;  // index into RunRows::series (unified over ranks)
  RowState state;
};

// From this step on, until the next one with the same optimizer, group and name.
struct ReadDeclared {
  std::int32_t restart = 0;
  std::int32_t rank = 0;
  std::int64_t step = 0;
  std::int32_t optimizer = 0;
  std::int32_t group = 0;
  std::int64_t window = -1;  // of the optimizer; -1: the source does not say
  DeclaredValue value;
};

}  // namespace trainmon
