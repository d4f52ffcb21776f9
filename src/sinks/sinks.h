// The sinks that have a name in a configuration.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "sinks/log_retention.h"
#include "trainmon/sink.h"

namespace trainmon {

// When the log is forced to the disk: never; when a segment ends; and at every flush().
enum class Fsync : std::uint8_t { never, segment, flush };

// `log`: append-only segment files log-000000.tmlog, ... in RunInfo::directory, one frame and one
// write(2) per batch (docs/formats.md). A segment is closed before it would exceed `segment_bytes`
// (a single larger batch still gets one).
// Where `keep` says so, older segments of the rank are deleted when a segment has begun.
// A sync that fails is thrown by the next flush(), once.
std::unique_ptr<Sink> make_log_sink(std::size_t segment_bytes, Retention keep = {},
                                    Fsync fsync = Fsync::never);

// `tensorboard`: event files in RUN/tensorboard/rank_N, at most `tags` curves (docs/formats.md).
std::unique_ptr<Sink> make_tensorboard_sink(std::size_t tags);

// `csv`: rows-000000.csv, ... and outcomes.csv, declared.csv, scalars.csv, payloads.csv,
// alerts.csv, gaps.csv, as far as there is something to say (docs/formats.md). The next file of
// rows is begun before one would exceed `segment_bytes`.
std::unique_ptr<Sink> make_csv_sink(std::size_t segment_bytes);

// `sqlite`: stats.db, one transaction per flush interval (docs/formats.md).
std::unique_ptr<Sink> make_sqlite_sink();

// What the configuration says for sinks.
struct SinkOptions {
  std::size_t segment_bytes = 0;
  std::size_t curves = 0;      // at most, of TensorBoard
  Retention retention;         // of the log
  Fsync fsync = Fsync::never;  // of the log
};
// One line of the table of sinks: the configuration's choices follow from it.
struct SinkType {
  std::string_view name;
  std::unique_ptr<Sink> (*make)(const SinkOptions& options);
};
std::span<const SinkType> sink_types();

}  // namespace trainmon
