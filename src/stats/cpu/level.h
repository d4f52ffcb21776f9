// Which instruction-set level the CPU kernels use.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace trainmon {

// Levels of the CPU kernels, bit-identical states all. On 64-bit Arm baseline is named "neon".
enum class CpuLevel : std::uint8_t { baseline, avx2, avx512 };
std::string_view cpu_level_name(CpuLevel level);
std::optional<CpuLevel> cpu_level_from_name(std::string_view name);
CpuLevel detected_cpu_level();
// The level in use: the detected one, or what TRAINMON_CPU_LEVEL or set_cpu_level() lowered it to.
// (Another value of the variable counts as unset; `trainmon doctor` says so.)
CpuLevel cpu_level();
// For tests. Throws std::invalid_argument when this machine lacks the level.
void set_cpu_level(CpuLevel level);

}  // namespace trainmon
