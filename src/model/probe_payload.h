// What a probe took of one tensor as the bytes of a payload, and back (docs/formats.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "trainmon/probe.h"

namespace trainmon {

// The state, intervals, signs and digest travel together, so that none is lost without the others.
std::vector<std::byte> probe_payload(std::span<const std::int64_t> sizes, int planes,
                                     const Probe& probe);

struct ProbePayload {
  std::vector<std::int64_t> sizes;
  int planes = 0;                    // of signs: 0 to 2
  Probe probe;                       // without its signs
  std::span<const std::byte> signs;  // views the bytes given
};
// nullopt where the bytes are none.
std::optional<ProbePayload> read_probe_payload(std::span<const std::byte> bytes);

}  // namespace trainmon
