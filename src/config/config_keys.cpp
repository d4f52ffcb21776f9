// The table of keys as people read it, each with one example.
#include "config/config_keys.h"

#include <array>
#include <utility>

#include "config/check.h"

namespace trainmon {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 39> kExamples = {{
    {"kinds", R"(["grads", "activations"])"},
    {"include", R"(["layers.*.mlp", "head"])"},
    {"exclude", R"(["**.bias"])"},
    {"every", "10"},
    {"budget", R"("1%")"},
    {"start_step", "1000"},
    {"stop_step", "2000"},
    {"ranks", "[0, 8]"},
    {"out", R"("runs/a")"},
    {"sinks", R"(["log", "tensorboard"])"},
    {"eps", "1e-06"},
    {"threads", "4"},
    {"input_grads", "false"},
    {"moments_at", R"("before_step")"},
    {"attention_modules", R"(["layers.*.attention"])"},
    {"attention_layout", R"("bshd")"},
    {"attention_causal", R"("yes")"},
    {"spectral_modules", R"(["layers.*.mlp"])"},
    {"router_modules", R"(["layers.*.router"])"},
    {"collectives", R"("all")"},
    {"collective_inputs", "true"},
    {"collective_callers", R"(["optimizer\\.py"])"},
    {"alert_deviation", "0.5"},
    {"alert_limit", "1000.0"},
    {"alert_stats", R"(["norm", "max"])"},
    {"alert_warmup", "100"},
    {"grad_acc_steps", "4"},
    {"start_iteration", "5000"},
    {"clock", "1"},
    {"backend", R"("ops")"},
    {"queue_mb", "256.0"},
    {"overflow", R"("block")"},
    {"flush_seconds", "5.0"},
    {"stop_timeout_seconds", "30.0"},
    {"device_timeout_seconds", "60.0"},
    {"segment_mb", "256.0"},
    {"tensorboard_tags", "500"},
    {"latest_mb", "64.0"},
    {"allow_volume", "true"},
}};

std::string example_of(std::string_view name) {
  for (const auto& [key, example] : kExamples) {
    if (key == name) return std::string(example);
  }
  return "";
}

}  // namespace

std::vector<ConfigKey> config_keys() {
  const Config defaults;
  std::vector<ConfigKey> keys;
  for (const Key& key : key_table()) {
    keys.push_back({std::string(key.name),
                    std::string(key.meaning),
                    expectation(key),
                    {key.choices.begin(), key.choices.end()},
                    field_value(defaults, key).dump(),
                    example_of(key.name)});
  }
  return keys;
}

}  // namespace trainmon
