// What a flight recorder is told beside rows and outcomes: stages of a step, collectives.
#pragma once

#include <cstdint>

namespace trainmon {

// The last stage that a rank has reached. The numbers stand in files.
enum class FlightStage : std::uint16_t {
  forward_begin = 1,
  forward_end = 2,
  backward_begin = 3,
  backward_end = 4,
  step_begin = 5,  // of the optimizer
  step_end = 6,
};

// A thread enters or leaves a call that other ranks take part in.
struct CollectiveCall {
  bool enters = true;
  bool waits = false;              // for one issued before, in wait() of its Work
  bool is_point_to_point = false;  // numbers of these are not the same on all ranks
  std::uint32_t operation = 0;     // numbers that Monitor::flight_word() and flight_group() gave
  std::uint32_t group = 0;
  std::uint64_t number = 0;  // of the call in its group on this rank, from 1
  std::int64_t bytes = 0;    // of all tensors that were given
};

}  // namespace trainmon
