#include "monitor/assembly.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "pipe/run_directory.h"
#include "rules/rules.h"
#include "sinks/sinks.h"
#include "trainmon/error.h"

namespace trainmon {

std::size_t mebibytes(double value) {
  return static_cast<std::size_t>(value * 1024.0 * 1024.0);
}

std::chrono::nanoseconds seconds(double value) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(value * 1e9));
}

Config checked(const Config& config) {
  if (std::vector<std::string> faults = validate(config); !faults.empty()) {
    throw ConfigError(std::move(faults));
  }
  return config;
}

MonitorParts checked(MonitorParts parts) {
  const auto is_null = [](const auto& part) { return part == nullptr; };
  if (std::ranges::any_of(parts.sinks, is_null) || std::ranges::any_of(parts.rules, is_null)) {
    throw std::invalid_argument("a sink or a rule of MonitorParts is a null pointer");
  }
  return parts;
}

Schedule schedule_of(const Config& config, const Identity& identity, const Keep& keep) {
  Schedule schedule;
  schedule.start = config.start_step;
  schedule.stop = config.stop_step;
  schedule.every = config.every.value_or(identity.world_size <= 4 ? 1 : 10);
  schedule.keep = keep;
  schedule.rank_selected =
      config.ranks.empty() ||
      std::find(config.ranks.begin(), config.ranks.end(), identity.rank) != config.ranks.end();
  return schedule;
}

double limit_of(const Config& config) {
  return config.alert_limit > 0.0 ? config.alert_limit : std::numeric_limits<double>::infinity();
}

std::vector<std::unique_ptr<Sink>> sinks_of(const Config& config) {
  SinkOptions options;
  options.segment_bytes = mebibytes(config.segment_mb);
  options.curves = static_cast<std::size_t>(config.tensorboard_tags);
  options.retention = {static_cast<std::int64_t>(mebibytes(config.retention_mb)),
                       std::chrono::seconds(std::llround(config.retention_days * 86400.0))};
  options.retention.lives = start_lives;
  if (config.fsync == "segment") options.fsync = Fsync::segment;
  if (config.fsync == "flush") options.fsync = Fsync::flush;
  std::vector<std::unique_ptr<Sink>> sinks;
  for (const std::string& name : config.sinks) {
    for (const SinkType& type : sink_types()) {
      if (type.name == name) sinks.push_back(type.make(options));
    }
  }
  return sinks;
}

std::vector<std::unique_ptr<Rule>> alert_rules_of(const Config& config) {
  RuleOptions options;
  options.deviation = config.alert_deviation;
  options.limit = config.alert_limit;
  options.warmup = config.alert_warmup;
  for (const std::string& name : config.alert_stats) {
    options.stats.push_back(*stat_from_name(name));
  }
  std::vector<std::unique_ptr<Rule>> rules;
  for (const RuleMaker make : rule_makers()) {
    if (std::unique_ptr<Rule> rule = make(options)) rules.push_back(std::move(rule));
  }
  return rules;
}

}  // namespace trainmon
