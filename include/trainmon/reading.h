// What was read of a tensor, for rows of the same elements at other places.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "trainmon/stat.h"

namespace trainmon {

// Empty until observe_sample() fills it in. Copies are cheap, and any thread may have one.
struct Reading {
  std::optional<RowState> state;       // of a tensor of the CPU
  std::shared_ptr<const void> launch;  // of one of a device, whose values come later
  bool is_there() const { return state.has_value() || launch != nullptr; }
};

}  // namespace trainmon
