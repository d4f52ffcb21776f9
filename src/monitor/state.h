// What a monitor is made of: shared with the writer thread, so that a thread stuck in a write
// outlives the monitor safely. Assembly is in state.cpp, what the writer thread keeps up in
// housekeeping.cpp, tensors of devices in device_sweeps.cpp.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "collect/collector.h"
#include "monitor/budget.h"
#include "monitor/control_file.h"
#include "monitor/device_time.h"
#include "monitor/forks.h"
#include "pipe/pipe.h"
#include "pipe/run_directory.h"
#include "recorder/flight_copies.h"
#include "rules/alert_console.h"
#include "rules/first_non_finite.h"
#include "sinks/memory.h"
#include "trainmon/monitor.h"

namespace trainmon {

// There are three regimes. Members under a mutex say which. Those of the writer thread are
// touched by it (and by the constructor before it starts) alone. All others are constant or
// atomic.
class Monitor::State {
 public:
  // Throws ConfigError, and what claiming the run directory throws.
  State(const Config& wanted, const Identity& who, MonitorParts parts);
  // The writer thread.
  static void start(const std::shared_ptr<State>& state);

  // False after stop() and in a forked child.
  bool alive() const { return !stopped.load(std::memory_order_relaxed) && !forked(); }
  bool forked() const { return forks() != born_after_forks; }

  Observed observe_on_device(SeriesId series, const TensorView& tensor, std::uint32_t flags,
                             const std::optional<Address>& address = std::nullopt,
                             Reading* keep = nullptr);
  void observe_all(std::span<const SeriesId> series, std::span<const TensorView> tensors,
                   std::span<Observed> out, std::uint32_t flags, const TensorView* scale);
  // Of the first 64 optimizers.
  void know_formula(int optimizer) {
    if (optimizer < 0 || optimizer >= 64) return;
    known_formulas.fetch_or(std::uint64_t{1} << optimizer, std::memory_order_relaxed);
  }
  bool knows_formula(int optimizer) const {
    return optimizer >= 0 && optimizer < 64 &&
           (known_formulas.load(std::memory_order_relaxed) >> optimizer & 1) != 0;
  }
  // True for the first of its reason.
  bool refuse(std::string_view reason, std::int64_t tensors);

  // What `work` throws, for want of memory, is counted and said once.
  template <typename Work>
  void attempt(std::string_view part, const Work& work) noexcept {
    try {
      work();
    } catch (const std::exception& error) {
      part_failed(part, error.what());
    }
  }
  // The same, and nothing after stop() or in a forked child.
  template <typename Work>
  void while_alive(std::string_view part, const Work& work) noexcept {
    if (alive()) attempt(part, work);
  }
  // What became of a tensor that `measure` reads.
  template <typename Measure>
  Observed observed(const Measure& measure) {
    if (!alive()) return Observed::idle;
    try {
      measure();
    } catch (const std::exception& error) {
      part_failed("observe", error.what());
      return Observed::refused;
    }
    return Observed::recorded;
  }
  void part_failed(std::string_view part, std::string_view why) noexcept;

  bool settle(std::chrono::nanoseconds timeout);
  bool flush(std::chrono::nanoseconds timeout, const std::function<bool()>& goes_on);
  Health health();

  void write_run_json();
  void follow_alerts(const Config& wanted);
  // The writer thread, and a stop that ran out of time: what the last flush says is not replaced.
  void write_health(bool last);
  // The writer thread: what the flight recorder holds when something was found stays.
  void keep_flight_copy();
  // The writer thread stands in a write, so another one says so. A disk that hangs for that one,
  // too, holds the caller up for a moment only.
  static void tell_that_time_ran_out(const std::shared_ptr<State>& state);

  const Config config;
  const std::string config_text = config_to_json(config);  // not made on the writer thread
  const Identity identity;
  std::shared_ptr<void> rank_lock;  // until nothing is written any more
  RunInfo run;                      // constant once constructed
  const std::function<void(const Alert&, const Series&)> on_alert;
  AlertConsole console;  // writer thread only
  const std::string started;
  std::mutex budget_mutex;
  Budget budget;                                // under budget_mutex
  DeviceTime device_time;                       // likewise
  std::atomic<std::int64_t> alerts{0};          // told so far
  std::unique_ptr<FlightRecorder> recorder;     // null: none; constant once constructed
  std::unique_ptr<FlightCopies> flight_copies;  // null where there is no recorder; likewise
  std::optional<std::int64_t> copy_due;         // of the flight recorder, for this step's alert
  std::shared_ptr<Pipe> pipe;
  Collector collector;
  MemorySink* memory = nullptr;
  FirstNonFinite* first_non_finite = nullptr;  // a rule of the pipe
  std::atomic<bool> stopped{false};
  const std::uint64_t born_after_forks = forks();
  std::shared_ptr<State> kept_after_fork;  // itself, in a child that must not destroy it

  std::atomic<std::int64_t> errors{0};
  std::atomic<std::int64_t> bad_losses{0};
  std::atomic<std::int64_t> no_numbers{0};  // values to be logged
  std::atomic<std::int64_t> failed_checks{0};
  std::atomic<bool> facts_changed{true};
  std::atomic<bool> starts_changed{false};  // of the facts, the step an optimizer began at
  std::mutex health_mutex;
  bool said_last = false;  // under health_mutex
  mutable std::mutex facts_mutex;
  RunDescription facts;
  std::map<std::string, std::int64_t> refused;
  std::map<std::string, std::string> parts_off;
  std::string failed_check;        // the first; under facts_mutex
  std::size_t standing_rules = 0;  // those before the ones that a new configuration replaces
  bool has_own_rules = false;
  std::atomic<bool> has_alert_rules{false};      // or had
  std::atomic<std::uint64_t> known_formulas{0};  // a bit of each optimizer
  Config following = config;                     // under facts_mutex
  std::optional<ControlChange> control;          // under facts_mutex
  std::atomic<std::int64_t> control_versions{0};
  std::optional<ControlFile> control_file;  // writer thread, and before it starts
  // writer thread only
  std::chrono::steady_clock::time_point next_health{};
  std::int64_t told_produced = 0;

 private:
  Observed add_to(DeviceSweep& sweep, SeriesId series, const TensorView& tensor,
                  std::uint32_t flags, const std::optional<Address>& address);
  Observed launch(DeviceSweep& sweep);
  void note_failed_check(const Alert& alert);
  void look_at_control();
  void look_around();
  void keep_house(bool last);
};

}  // namespace trainmon
