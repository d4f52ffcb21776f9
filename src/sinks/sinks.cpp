#include "sinks/sinks.h"

#include <array>

#include "sinks/memory.h"

namespace trainmon {
namespace {

using Options = SinkOptions;

constexpr std::array<SinkType, 5> kTypes = {{
    {"log", [](const Options& o) { return make_log_sink(o.segment_bytes, o.retention, o.fsync); }},
    {"csv", [](const Options& o) { return make_csv_sink(o.segment_bytes); }},
    {"sqlite", [](const Options&) { return make_sqlite_sink(); }},
    {"tensorboard", [](const Options& o) { return make_tensorboard_sink(o.curves); }},
    {"memory",
     [](const Options&) -> std::unique_ptr<Sink> { return std::make_unique<MemorySink>(); }},
}};

}  // namespace

std::span<const SinkType> sink_types() {
  return kTypes;
}

}  // namespace trainmon
