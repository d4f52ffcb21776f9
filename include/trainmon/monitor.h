// The monitor of one rank: register series, observe tensors, tell it what the steps became.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainmon/config.h"
#include "trainmon/control.h"
#include "trainmon/flight.h"
#include "trainmon/health.h"
#include "trainmon/identity.h"
#include "trainmon/probe.h"
#include "trainmon/reading.h"
#include "trainmon/record.h"
#include "trainmon/rule.h"
#include "trainmon/sink.h"

namespace trainmon {

struct UpdateFormula;

// What observe() did with a tensor.
enum class Observed : std::uint8_t {
  recorded = 0,   // one row
  idle = 1,       // nothing to do: stopped, forked, not this step, no value
  elsewhere = 2,  // on a device without kernels here: the caller measures it, adds a late row
  refused = 3,    // a dtype or layout that is not measured; counted and said once in run.json
};

// What a program adds to a monitor besides its configuration.
struct MonitorParts {
  std::filesystem::path directory;  // of this rank, used as it is; "": claimed under config.out
  std::vector<std::unique_ptr<Sink>> sinks;                      // after those of the configuration
  std::vector<std::unique_ptr<Rule>> rules;                      // after those of the configuration
  double alert_limit = std::numeric_limits<double>::infinity();  // the smallest limit of `rules`
  // Called on the writer thread for every alert, its step filled in; must not wait or throw.
  std::function<void(const Alert&, const Series&)> on_alert;
  // How an alert of a rule of statistics is worded on the console; empty: our way.
  std::function<std::string(const Alert&, const Series&)> alert_text;
};

// Thread-safe unless said otherwise. After construction no member throws, except where stated, and
// none waits for the disk; everything after stop() or in a forked child does nothing.
class Monitor {
 public:
  // Creates the rank's directory and starts the writer thread. Throws ConfigError for a bad
  // config, std::runtime_error when the directory cannot be made, holds another model's run, or is
  // written to by another process. Throws std::invalid_argument for a null pointer in `parts`.
  Monitor(const Config& config, const Identity& identity, MonitorParts parts = {});
  ~Monitor();  // stop()s if that has not happened
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  const Config& config() const;
  const RunInfo& run() const;

  // --- series -------------------------------------------------------------------------------
  // The id of this series, new or known; equal series get equal ids. Throws std::bad_alloc where
  // there is no memory for it: asking again is fine.
  SeriesId add_series(const Series& series);

  // --- steps --------------------------------------------------------------------------------
  // Declares the next optimizer (index 0, 1, ...) whose first window belongs to `start_step`.
  int add_optimizer(std::int64_t start_step);
  // Corrects the first window's step, once, before its outcome (learnt from the optimizer's state).
  void set_start_step(int optimizer, std::int64_t step);
  std::int64_t window(int optimizer) const;
  std::int64_t step(int optimizer) const;  // of the open window; assumes undecided ones were taken
  // Of the open window or one closed lately; -1 when it is longer ago.
  std::int64_t step_of(int optimizer, std::int64_t window) const;
  bool recording(int optimizer) const;  // does the open window's step get recorded?
  // Whether a row of the open window had a NaN or an infinity (of values already known).
  bool saw_non_finite(int optimizer) const;
  // How many of the logged losses (scalars with "loss" in their name) were not finite.
  std::int64_t bad_losses() const;
  // "check gap failed at step 12": the first step check that certainly failed; empty: none.
  std::string failed_check() const;
  // How many findings of `checks` there were; nullopt without `checks`.
  std::optional<std::int64_t> failed_checks() const;
  // Whether a rule of statistics is at work or was, be it of the configuration, of a change that
  // follow() brought, or of MonitorParts.
  bool has_alert_rules() const;
  // A hook of a backward runs for parameters of `optimizer`; `task` identifies the backward and
  // differs between backwards. Returns the accum of this backward.
  std::int32_t on_backward(int optimizer, std::int64_t task);
  std::int32_t accum(int optimizer) const;       // of the current or last backward, 0 before any
  std::int32_t next_accum(int optimizer) const;  // of the backward that the next forward precedes
  // The optimizer begins and ends an attempt at a step; end closes the window. `fate` nullopt
  // means not known yet: decide() later.
  void begin_attempt(int optimizer);
  void end_attempt(int optimizer, std::optional<Fate> fate, double loss_scale);
  // The gradients of the window were cleared without an attempt: closes the window.
  void abandon_window(int optimizer, Fate fate, double loss_scale);
  void decide(int optimizer, std::int64_t window, Fate fate, double loss_scale);

  // --- rows ---------------------------------------------------------------------------------
  // Measures the tensor and appends a row. The address is (series, open window and accum of the
  // series' optimizer, call 0) in the first form. Concurrent calls are fine. A series that
  // add_series() did not give, sizes that are not there and spans of unequal lengths are
  // part_failed(), here and below.
  Observed observe(SeriesId series, const TensorView& tensor, std::uint32_t flags = 0);
  Observed observe_at(SeriesId series, const TensorView& tensor, std::int64_t window,
                      std::int32_t accum, std::int32_t call, std::uint32_t flags = 0);
  // The same, with an estimate from one block in n of a tensor of the CPU that is long enough. The
  // key `sample` asks for it. With n = 0 all is read. `keep` gets what was read: nothing of an
  // estimate, or of what a captured graph reads.
  Observed observe_sample(SeriesId series, const TensorView& tensor, std::int64_t window,
                          std::int32_t accum, std::int32_t call, int n, std::uint32_t flags = 0,
                          Reading* keep = nullptr);
  // A row of a tensor whose elements were read before: `reading` is there, and of them.
  Observed observe_again(SeriesId series, const TensorView& tensor, std::int64_t window,
                         std::int32_t accum, std::int32_t call, std::uint32_t flags,
                         const Reading& reading);
  // A row of the tensor divided by the loss scale, which is in it.
  Observed observe_scaled(SeriesId series, const TensorView& tensor, double scale,
                          std::uint32_t flags = 0);
  // A row of the step that a formula takes of tensors of the CPU (stats/update.h).
  Observed observe_update(SeriesId series, const UpdateFormula& formula);
  // A row of a tensor that the whole model is given in a call. On the CPU, ids also have one of
  // their entropy, and a mask of minus infinities has none. On a device it has one with
  // flag::kMasked.
  Observed observe_input(SeriesId series, SeriesId entropy, const TensorView& tensor,
                         std::int64_t window, std::int32_t accum, std::int32_t call);
  // observe() for many tensors at once: those of a CUDA device are measured by one launch on the
  // stream of each. out[i] tells what became of tensors[i]. `scale`: a float32 number on the device
  // that tensors of that device and stream are divided by; others are flagged as still scaled.
  // (Zeros are counted with the scale that arrived last.)
  void observe_all(std::span<const SeriesId> series, std::span<const TensorView> tensors,
                   std::span<Observed> out, std::uint32_t flags = 0,
                   const TensorView* scale = nullptr);
  // Memory for launches on this device over so many tensors and bytes, so that none is allocated
  // while training. Gives "" or why its tensors are not measured by kernels here.
  std::string reserve_device(int device, std::int64_t tensors, std::int64_t bytes);
  // A row whose values a device still computes; rows of one late batch are in call order.
  void add_late_row(SeriesId series, DType dtype, std::span<const std::int64_t> sizes,
                    std::int64_t window, std::int32_t accum, std::int32_t call,
                    std::uint32_t flags);
  // Seals the late rows since the last call; 0 when there are none. The values follow by
  // fulfil(): one state per row, in order. A ticket not fulfilled in device_timeout_seconds is
  // written with flag not_ready.
  std::int64_t seal_late();
  // `checks` is empty, or has one for each row, or none of it; its seq is filled in.
  void fulfil(std::int64_t ticket, std::span<const RowState> states,
              std::span<const std::optional<RowCheck>> checks = {});
  // The index in the full tensor of the first element of a tensor, where a check of it is taken.
  // nullopt without the configuration's `checks`, and of a series that has none. So it is of an
  // expanded view of more than 16 million elements, mostly the same. No data are looked at.
  std::optional<std::int64_t> checked_from(SeriesId series, const TensorView& tensor) const;
  // On the clock's open window, or on this one of it.
  void add_scalar(std::string_view name, double value,
                  std::optional<std::int64_t> window = std::nullopt);
  // A value to be logged was no number: it is counted in `Health::scalars_dropped`, as "no_number".
  void drop_scalar();
  // What a group of the optimizer says in its open window, as far as it changed; window and seq are
  // filled in. Counts as no row.
  void declare(Declared declared);
  // Counts as a row; seq of the key is filled in, in the first form window and accum too.
  void add_payload(Payload payload);
  void add_payload_at(Payload payload);
  // Takes all that `request` asks for of these tensors, one pass over each. The writer gets it as
  // one batch of one payload each, kept or lost together. `step` names the files of
  // make_grad_probe_sink(); the windows of optimizers have no part in it. What cannot be probed
  // (a tensor that is not on the CPU, bounds that do not ascend) is part_failed().
  void probe(std::span<const ProbeItem> items, std::int64_t step, const ProbeRequest& request);
  // Closes the open batch and hands it to the writer.
  void seal(Moment moment);
  // The same, and waits until all that was sealed before has passed the sinks, at most this long;
  // false if it took longer. For callers that read files or the last rows right afterwards.
  bool settle(double seconds);
  // Waits at most `seconds` (NaN and less than 0: 0) until all that was handed over before is in
  // the files of every sink. It is as flush() of a sink leaves it. A killed process loses none of
  // it, a power cut may, but for the log under config.fsync "flush". False: it took longer, a sink
  // could not write, rows were given up meanwhile (health() counts them), or this is a forked
  // child. Late values and fates that nobody has told are waited for or not there. Also after
  // stop(): true if that has written everything. `goes_on` is asked ten times a second on this
  // thread; false ends the wait. It must not throw.
  bool flush(
      double seconds, const std::function<bool()>& goes_on = [] { return true; });

  // --- the flight recorder ------------------------------------------------------------------
  // Whether there is one (config.recorder_mb): it could not be made on a full disk, say. Without
  // one the members below do nothing. Outcomes, rows, scalars, alerts, and stages that other
  // members tell of, come into it by themselves.
  bool has_recorder() const;
  // Folders in the run directory that hold copies of it, in the order they were made. This start
  // keeps one when a rule alerts or a step check fails, a few at most.
  std::vector<std::filesystem::path> flight_copies() const;
  // The number of a text, or of a group and its ranks ("0-3,8", "*" for all, "" for unknown). A
  // call of a collective can name it. 0 where there is no more room. Takes a lock.
  std::uint32_t flight_word(std::string_view text);
  std::uint32_t flight_group(std::string_view name, std::string_view ranks);
  // The clock's open window has reached it. No lock, no allocation.
  void note_stage(FlightStage stage);
  void note_collective(const CollectiveCall& call);

  // --- bookkeeping --------------------------------------------------------------------------
  void set_covered(std::string_view kind);
  void set_not_covered(std::string_view what, std::string_view why);
  void refuse(std::string_view reason);                           // counts one tensor not measured
  void part_failed(std::string_view part, std::string_view why);  // said once, in health.json
  void set_note(std::string_view key, std::string_view json);     // extra entry of run.json
  // The optimizer is of a class whose formula step checks have: what fails is certain. Of the first
  // 64 optimizers.
  void know_formula(int optimizer);

  // --- changes while running ----------------------------------------------------------------
  // RUN/control.json is looked at once a second (not in a directory that MonitorParts gave). How
  // many valid versions were found so far: cheap, for a caller that asks at every step.
  std::int64_t control_versions() const;
  // The newest of them; nullopt before the first.
  std::optional<ControlChange> control() const;
  // Another every, start_step, stop_step and ranks, for windows that open from now on. Other
  // alert_* hold for what is observed from now on, where MonitorParts gave no rules. The rest is
  // the caller's.
  void follow(const Config& config);

  // --- a budget -----------------------------------------------------------------------------
  // The clock's step that has just ended took so long (0: not known). `own_seconds` of it were in
  // hooks on the training thread. What launches on a CUDA device took is added to them here, by
  // events around those of a step now and then. True when other steps than
  // before are recorded from the open window on. Without config.budget nothing happens. Call it at
  // every step or at none. Notes what it decides under "budget" in run.json and, as scalars of the
  // step, trainmon/recorded (0 or 1) and, now and then, trainmon/share.
  bool step_timed(double seconds, double own_seconds, bool recorded);
  // That note (docs/formats.md); "" without a budget.
  std::string budget() const;

  // --- reading while running ----------------------------------------------------------------
  // Rows of the last completed window of each optimizer, bounded by latest_mb.
  std::vector<Row> latest() const;
  const SeriesTable& series() const;
  Health health() const;
  // Rows of the sink `memory`; empty without it.
  std::vector<RecordBatch> memory() const;

  // Seals, drains and closes within stop_timeout_seconds; what could not be written is counted as
  // dropped ("stop_timeout"). Idempotent. Returns the final health.
  Health stop();

 private:
  friend void settle_monitors_of(const std::filesystem::path& path, double seconds) noexcept;
  class AtWork;
  class State;
  std::shared_ptr<State> state_;
};

// For whoever reads files in the process that writes them. settle()s the monitors at work that
// write to `path`, into it or around it, for at most this long together.
void settle_monitors_of(const std::filesystem::path& path, double seconds) noexcept;

}  // namespace trainmon
