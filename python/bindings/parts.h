// A Monitor as Python holds it: together with the parts it was given.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "sinks/grad_probe.h"
#include "sinks/msprobe.h"
#include "trainmon/monitor.h"

namespace trainmon {

inline constexpr const char* kCapsule = "trainmon.monitor";  // of Monitor*, for the fast calls

// An alert with the names of what it is about.
struct AlertEvent {
  Alert alert;
  Series series;
};

// From the writer thread to a Python thread. The queue is bounded. Repeats of one (series, rule,
// statistic) that nobody has taken yet become one event with their count. Beyond the bound only a
// number is kept.
class AlertQueue {
 public:
  void push(const Alert& alert, const Series& series);
  // All that is there, waiting at most this long for something; empty after close().
  std::vector<AlertEvent> pop(std::chrono::nanoseconds timeout, std::int64_t& untold);
  void close();

 private:
  static constexpr std::size_t kMost = 10000;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<AlertEvent> events_;
  std::int64_t untold_ = 0;
  bool closed_ = false;
};

// What the JSON object `parts` of the Python constructor asks for:
//   directory   text          the rank's directory, used as it is
//   msprobe     object        ops, ndigits, steps_per_file, grad_acc_steps, micro_gradients, files,
//                             events; of Monitor V2 monitors, first_step, chunk_names
//   anomaly     object        base, pp_stage, group_mates: anomaly.json of msprobe
//   grad_probe  object        intervals, bounds, bound_texts, planes (0 to 2), npy, digest,
//                             digest_column: the files of a gradient probe
//   grad_stats  object        local, global, stats, write_interval: the files of ColossalAIMonitor
//   rules       list          in order, the first that fires wins: {name, deviation, warmup, stats}
//                             or {name, limit, stats}
//   queue       bool          alerts() may be asked for
//
// Throws std::invalid_argument, also for a key that is not among these. nlohmann's exceptions
// come for wrong types: our own Python makes it.
struct BoundParts {
  MonitorParts parts;
  MsprobeSink* msprobe = nullptr;  // owned by `parts`, later by the monitor
  ProbeRequest grad_probe;         // what probe_gradients() measures
  std::shared_ptr<AlertQueue> alerts;
};
BoundParts parts_from_json(const std::string& text, const Identity& identity);

struct BoundMonitor : Monitor {
  BoundMonitor(const Config& config, const Identity& identity, BoundParts&& bound)
      : Monitor(config, identity, std::move(bound.parts)),
        msprobe(bound.msprobe),
        grad_probe(std::move(bound.grad_probe)),
        alerts(std::move(bound.alerts)) {}
  MsprobeSink* const msprobe;
  const ProbeRequest grad_probe;
  const std::shared_ptr<AlertQueue> alerts;
};

}  // namespace trainmon
