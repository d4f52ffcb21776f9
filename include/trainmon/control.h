// What a run is told while it goes on: RUN/control.json, written by `trainmon ctl` and followed by
// every rank.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainmon/config.h"

namespace trainmon {

struct Control {
  std::int64_t number = 0;  // of the change; trainmon ctl lets it grow
  bool on = true;           // false: no hooks, no rows; steps are still counted
  std::string set = "{}";   // JSON object of configuration keys, put over those the run began with
  std::optional<std::int64_t> apply_at_step;  // first step it holds for; unset: the next one
};
// A control together with the configuration that it makes.
struct ControlChange {
  Control control;
  Config config;
};

std::filesystem::path control_path(const std::filesystem::path& run);

// The keys of `set` that a running monitor can follow.
std::vector<std::string_view> changeable_keys();

// Throws ConfigError naming every fault at once. Faults are syntax, unknown and duplicate keys,
// types, keys of `set` that do not change, wrong values, limits (1 MiB, depth 32).
Control control_from_json(std::string_view text);
std::string control_to_json(const Control& control);
// `config` with the keys of control.set put over it. Throws ConfigError.
Config with_control(const Config& config, const Control& control);

}  // namespace trainmon
