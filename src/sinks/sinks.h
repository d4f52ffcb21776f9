// The sinks this build has.
#pragma once

#include <cstddef>
#include <memory>

#include "trainmon/sink.h"

namespace trainmon {

// `log`: append-only segment files log-000000.tmlog, ... in RunInfo::directory, one frame and one
// write(2) per batch (docs/formats.md). A segment is closed before it would exceed `segment_bytes`
// (a single larger batch still gets one).
std::unique_ptr<Sink> make_log_sink(std::size_t segment_bytes);

}  // namespace trainmon
