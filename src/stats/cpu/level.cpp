// Which instruction-set level the kernels use.
#include "stats/cpu/level.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "base/cpu.h"
#include "stats/cpu/check_kernels.h"
#include "stats/cpu/kernels.h"
#include "stats/cpu/probe_kernels.h"

namespace trainmon {
namespace {

#if defined(__aarch64__)
constexpr std::string_view kBaseline = "neon";  // what every 64-bit Arm has
#else
constexpr std::string_view kBaseline = "baseline";
#endif
constexpr std::array<std::string_view, 3> kNames = {kBaseline, "avx2", "avx512"};
constexpr std::array<const cpu::Kernels*, 3> kKernels = {&cpu::kBaselineKernels, &cpu::kAvx2Kernels,
                                                         &cpu::kAvx512Kernels};

constexpr std::array<const cpu::ProbeKernels*, 3> kProbeKernels = {
    &cpu::kBaselineProbeKernels, &cpu::kAvx2ProbeKernels, &cpu::kAvx512ProbeKernels};

constexpr std::array<const cpu::CheckKernels*, 3> kCheckKernels = {
    &cpu::kBaselineCheckKernels, &cpu::kAvx2CheckKernels, &cpu::kAvx512CheckKernels};

CpuLevel initial_level() {
  const CpuLevel detected = detected_cpu_level();
  const char* wanted = std::getenv("TRAINMON_CPU_LEVEL");
  if (wanted == nullptr) return detected;
  return std::min(cpu_level_from_name(wanted).value_or(detected), detected);
}

// These are measured shares of the read limit. On memory of 37 GB/s (EPYC, Zen 5) 2 KiB give
// 0.75, 4 KiB 0.92, 8 KiB 0.98. On memory of 10 to 17 GB/s (Xeon) 2 KiB give 0.96, 8 KiB 0.61.
std::int64_t prefetch_bytes() {
#if defined(__x86_64__)
  if (ask_cpu().amd) return 8192;
#endif
  return 2048;
}

std::atomic<CpuLevel>& level() {
  static std::atomic<CpuLevel> value = initial_level();
  return value;
}

}  // namespace

std::string_view cpu_level_name(CpuLevel level) {
  return kNames[static_cast<std::size_t>(level)];
}

std::optional<CpuLevel> cpu_level_from_name(std::string_view name) {
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<CpuLevel>(found - kNames.begin());
}

CpuLevel detected_cpu_level() {
#if defined(__x86_64__)
  static const CpuFeatures found = ask_cpu();
  if (found.avx512) return CpuLevel::avx512;
  if (found.avx2) return CpuLevel::avx2;
#endif
  return CpuLevel::baseline;
}

CpuLevel cpu_level() {
  return level().load(std::memory_order_relaxed);
}

void set_cpu_level(CpuLevel wanted) {
  if (wanted > detected_cpu_level()) {
    throw std::invalid_argument("this machine has no " + std::string(cpu_level_name(wanted)));
  }
  level().store(wanted, std::memory_order_relaxed);
}

const std::int64_t cpu::kPrefetchBytes = prefetch_bytes();

const cpu::Kernels& cpu::kernels() {
  return *kKernels[static_cast<std::size_t>(cpu_level())];
}

const cpu::CheckKernels& cpu::check_kernels() {
  return *kCheckKernels[static_cast<std::size_t>(cpu_level())];
}

const cpu::ProbeKernels& cpu::probe_kernels() {
  return *kProbeKernels[static_cast<std::size_t>(cpu_level())];
}

}  // namespace trainmon
