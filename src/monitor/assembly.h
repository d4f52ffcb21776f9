// From a configuration to what a monitor is made of.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "collect/windows.h"
#include "trainmon/config.h"
#include "trainmon/monitor.h"
#include "trainmon/rule.h"
#include "trainmon/sink.h"

namespace trainmon {

std::size_t mebibytes(double value);
std::chrono::nanoseconds seconds(double value);
// The same; throws ConfigError with all its faults.
Config checked(const Config& config);
// The same; throws std::invalid_argument where one of them is a null pointer.
MonitorParts checked(MonitorParts parts);
Schedule schedule_of(const Config& config, const Identity& identity, const Keep& keep = {});
// The absolute value above which a row is flagged when it is measured; infinity for none.
double limit_of(const Config& config);
// In the order of config.sinks.
std::vector<std::unique_ptr<Sink>> sinks_of(const Config& config);
// In the order in which they look; none where the configuration asks for none.
std::vector<std::unique_ptr<Rule>> alert_rules_of(const Config& config);

}  // namespace trainmon
