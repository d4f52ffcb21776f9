// What a monitor is asked: each call goes on to its State, and nothing raises into training.
#include "trainmon/monitor.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "model/first_bad.h"
#include "model/own_scalars.h"
#include "monitor/assembly.h"
#include "monitor/at_work.h"
#include "monitor/state.h"

namespace trainmon {

Monitor::Monitor(const Config& config, const Identity& identity, MonitorParts parts) {
  watch_forks();
  state_ = std::make_shared<State>(config, identity, checked(std::move(parts)));
  State::start(state_);
  AtWork::all().add(state_);
}

Monitor::~Monitor() {
  if (state_->forked()) {
    // Nothing of the parent's threads and locks may be touched here, not even to destroy it.
    state_->kept_after_fork = state_;
    return;
  }
  stop();
}

const Config& Monitor::config() const {
  return state_->config;
}
const RunInfo& Monitor::run() const {
  return state_->run;
}
const SeriesTable& Monitor::series() const {
  return state_->collector.series();
}

SeriesId Monitor::add_series(const Series& series) {
  if (!state_->alive()) return 0;
  return state_->collector.series().add(series);
}

int Monitor::add_optimizer(std::int64_t start_step) {
  if (!state_->alive()) return 0;
  const int added = state_->collector.windows().add_optimizer(start_step);
  state_->facts_changed = state_->starts_changed = true;
  return added;
}

void Monitor::set_start_step(int optimizer, std::int64_t step) {
  if (!state_->alive()) return;
  state_->collector.windows().set_start_step(optimizer, step);
  state_->facts_changed = state_->starts_changed = true;
}

std::int64_t Monitor::window(int optimizer) const {
  return state_->collector.windows().window(optimizer);
}

std::int64_t Monitor::step(int optimizer) const {
  return state_->collector.windows().step(optimizer);
}

std::int64_t Monitor::step_of(int optimizer, std::int64_t window) const {
  return state_->collector.windows().step_of(optimizer, window);
}

bool Monitor::recording(int optimizer) const {
  return state_->alive() && state_->collector.windows().recording(optimizer);
}

std::string Monitor::failed_check() const {
  const std::lock_guard lock(state_->facts_mutex);
  return state_->failed_check;
}

std::optional<std::int64_t> Monitor::failed_checks() const {
  if (!state_->config.checks) return std::nullopt;
  return state_->failed_checks;
}

std::int64_t Monitor::bad_losses() const {
  return state_->bad_losses;
}

bool Monitor::has_alert_rules() const {
  return state_->has_alert_rules;
}

bool Monitor::saw_non_finite(int optimizer) const {
  return state_->collector.windows().saw_non_finite(optimizer);
}

std::int32_t Monitor::on_backward(int optimizer, std::int64_t task) {
  return state_->alive() ? state_->collector.windows().on_backward(optimizer, task) : 0;
}

std::int32_t Monitor::accum(int optimizer) const {
  return state_->collector.windows().accum(optimizer);
}

std::int32_t Monitor::next_accum(int optimizer) const {
  return state_->collector.windows().next_accum(optimizer);
}

void Monitor::begin_attempt(int optimizer) {
  state_->while_alive("steps", [&] {
    state_->collector.windows().begin_attempt(optimizer);
    state_->collector.note_stage(FlightStage::step_begin, optimizer);
  });
}

void Monitor::end_attempt(int optimizer, std::optional<Fate> fate, double loss_scale) {
  state_->while_alive("steps", [&] {
    state_->collector.note_stage(FlightStage::step_end, optimizer);
    state_->collector.windows().end_attempt(optimizer, fate, loss_scale);
    state_->collector.window_closed(optimizer);
  });
}

void Monitor::abandon_window(int optimizer, Fate fate, double loss_scale) {
  state_->while_alive("steps", [&] {
    state_->collector.windows().abandon(optimizer, fate, loss_scale);
    state_->collector.window_closed(optimizer);
  });
}

void Monitor::decide(int optimizer, std::int64_t window, Fate fate, double loss_scale) {
  state_->while_alive(
      "steps", [&] { state_->collector.windows().decide(optimizer, window, fate, loss_scale); });
}

Observed Monitor::observe(SeriesId series, const TensorView& tensor, std::uint32_t flags) {
  if (!state_->alive()) return Observed::idle;
  try {
    if (tensor.device != Device::cpu) return state_->observe_on_device(series, tensor, flags);
    state_->collector.observe(series, tensor, flags);
  } catch (const std::exception& error) {
    part_failed("observe", error.what());
    return Observed::refused;
  }
  return Observed::recorded;
}

Observed Monitor::observe_at(SeriesId series, const TensorView& tensor, std::int64_t window,
                             std::int32_t accum, std::int32_t call, std::uint32_t flags) {
  return observe_sample(series, tensor, window, accum, call, 0, flags);
}

Observed Monitor::observe_sample(SeriesId series, const TensorView& tensor, std::int64_t window,
                                 std::int32_t accum, std::int32_t call, int n, std::uint32_t flags,
                                 Reading* keep) {
  if (!state_->alive()) return Observed::idle;
  const Address at{window, accum, call};
  try {
    if (tensor.device != Device::cpu) {
      return state_->observe_on_device(series, tensor, flags, at, keep);
    }
    state_->collector.observe_sample(series, tensor, at, n, flags, keep);
  } catch (const std::exception& error) {
    part_failed("observe", error.what());
    return Observed::refused;
  }
  return Observed::recorded;
}

Observed Monitor::observe_again(SeriesId series, const TensorView& tensor, std::int64_t window,
                                std::int32_t accum, std::int32_t call, std::uint32_t flags,
                                const Reading& reading) {
  return state_->observed([&] {
    state_->collector.observe_again(series, tensor, {window, accum, call}, flags, reading);
  });
}

Observed Monitor::observe_scaled(SeriesId series, const TensorView& tensor, double scale,
                                 std::uint32_t flags) {
  return state_->observed([&] { state_->collector.observe_scaled(series, tensor, scale, flags); });
}

Observed Monitor::observe_input(SeriesId series, SeriesId entropy, const TensorView& tensor,
                                std::int64_t window, std::int32_t accum, std::int32_t call) {
  if (tensor.device != Device::cpu) return observe_at(series, tensor, window, accum, call, 0);
  return state_->observed([&] {
    state_->collector.observe_input(series, entropy, tensor, {window, accum, call});
  });
}

Observed Monitor::observe_update(SeriesId series, const UpdateFormula& formula) {
  if (!state_->alive()) return Observed::idle;
  try {
    state_->collector.observe_update(series, formula);
  } catch (const std::invalid_argument&) {
    return Observed::refused;
  } catch (const std::exception& error) {
    part_failed("observe", error.what());
    return Observed::refused;
  }
  return Observed::recorded;
}

void Monitor::observe_all(std::span<const SeriesId> series, std::span<const TensorView> tensors,
                          std::span<Observed> out, std::uint32_t flags, const TensorView* scale) {
  std::ranges::fill(out, Observed::idle);
  if (!state_->alive()) return;
  try {
    state_->observe_all(series, tensors, out, flags, scale);
  } catch (const std::exception& error) {
    part_failed("observe", error.what());
  }
}

void Monitor::add_scalar(std::string_view name, double value, std::optional<std::int64_t> window) {
  state_->while_alive("scalars", [&] {
    state_->collector.add_scalar(name, value, window);
    if (is_loss(name) && !std::isfinite(value)) state_->bad_losses.fetch_add(1);
  });
}

void Monitor::drop_scalar() {
  state_->no_numbers.fetch_add(1);
}

void Monitor::declare(Declared declared) {
  state_->while_alive("observe", [&] { state_->collector.declare(std::move(declared)); });
}

void Monitor::add_payload(Payload payload) {
  state_->while_alive("observe", [&] { state_->collector.add_payload(std::move(payload)); });
}

void Monitor::add_payload_at(Payload payload) {
  state_->while_alive("observe", [&] { state_->collector.add_payload_at(std::move(payload)); });
}

void Monitor::probe(std::span<const ProbeItem> items, std::int64_t step,
                    const ProbeRequest& request) {
  state_->while_alive("probe", [&] { state_->collector.probe(items, step, request); });
}

void Monitor::seal(Moment moment) {
  if (moment == Moment::forward_end) note_stage(FlightStage::forward_end);
  if (moment == Moment::backward_end) note_stage(FlightStage::backward_end);
  state_->while_alive("seal", [&] { state_->collector.seal(moment); });
}

void Monitor::set_covered(std::string_view kind) {
  state_->while_alive("notes", [&] {
    const std::lock_guard lock(state_->facts_mutex);
    std::vector<std::string>& covered = state_->facts.covered;
    if (std::find(covered.begin(), covered.end(), kind) != covered.end()) return;
    covered.emplace_back(kind);
    state_->facts_changed = true;
  });
}

void Monitor::set_not_covered(std::string_view what, std::string_view why) {
  state_->while_alive("notes", [&] {
    const std::lock_guard lock(state_->facts_mutex);
    if (state_->facts.not_covered.emplace(what, why).second) state_->facts_changed = true;
  });
}

void Monitor::know_formula(int optimizer) {
  state_->know_formula(optimizer);
}

void Monitor::set_note(std::string_view key, std::string_view json) {
  state_->while_alive("notes", [&] {
    const bool is_json = nlohmann::json::accept(json);
    std::string note = is_json ? std::string(json) : json_string(json);
    const std::lock_guard lock(state_->facts_mutex);
    state_->facts.notes.insert_or_assign(std::string(key), std::move(note));
    state_->facts_changed = true;
  });
}

void Monitor::refuse(std::string_view reason) {
  state_->while_alive("observe", [&] {
    if (!state_->refuse(reason, 1)) return;
    set_not_covered("tensors: " + std::string(reason), "this kind of tensor is not measured");
  });
}

void Monitor::part_failed(std::string_view part, std::string_view why) {
  if (state_->alive()) state_->part_failed(part, why);
}

std::int64_t Monitor::control_versions() const {
  return state_->alive() ? state_->control_versions.load(std::memory_order_acquire) : 0;
}

std::optional<ControlChange> Monitor::control() const {
  if (!state_->alive()) return std::nullopt;
  const std::lock_guard lock(state_->facts_mutex);
  return state_->control;
}

void Monitor::follow(const Config& config) {
  if (!state_->alive()) return;
  Schedule schedule = schedule_of(config, state_->identity);
  std::optional<std::string> note;
  {
    const std::lock_guard lock(state_->budget_mutex);
    Budget& budget = state_->budget;
    const std::int64_t step = state_->collector.windows().step(state_->config.clock);
    if (budget.follow(config.budget, schedule.every, step)) note = budget.note();
    schedule.keep = budget.keep();
  }
  if (note) set_note("budget", *note);
  state_->collector.windows().set_schedule(schedule);
  state_->attempt("alerts", [&] { state_->follow_alerts(config); });
}

bool Monitor::step_timed(double seconds, double own_seconds, bool recorded) {
  if (!state_->alive()) return false;
  State& state = *state_;
  Windows& windows = state.collector.windows();
  const int clock = state.config.clock;
  const std::int64_t window = windows.window(clock) - 1;
  bool changed = false;
  std::optional<std::string> note;
  double share = 0.0;
  {
    const std::lock_guard lock(state.budget_mutex);
    Budget& budget = state.budget;
    if (!budget.is_set()) return false;
    const double on_device = state.device_time.after_step(recorded, state.collector);
    const double own = seconds > 0.0 ? std::min(own_seconds + on_device, seconds) : own_seconds;
    changed = budget.take({seconds, own, recorded}, windows.step(clock),
                          state.alerts.load(std::memory_order_relaxed));
    if (changed) windows.set_keep(budget.keep());
    share = budget.share();
    if (changed || budget.is_note_due()) note = budget.note();
  }
  state.collector.add_scalar(kRecordedScalar, recorded ? 1.0 : 0.0, window);
  if (note) {
    if (share > 0.0) state.collector.add_scalar(kShareScalar, share, window);
    set_note("budget", *note);
  }
  return changed;
}

std::string Monitor::budget() const {
  if (state_->forked()) return "";
  const std::lock_guard lock(state_->budget_mutex);
  return state_->budget.is_set() ? state_->budget.note() : "";
}

std::vector<Row> Monitor::latest() const {
  return state_->forked() ? std::vector<Row>{} : state_->pipe->latest();
}

Health Monitor::health() const {
  Health found;
  if (!state_->forked()) state_->attempt("health", [&] { found = state_->health(); });
  return found;
}

std::vector<RecordBatch> Monitor::memory() const {
  if (state_->forked() || state_->memory == nullptr) return {};
  return state_->memory->snapshot();
}

Health Monitor::stop() {
  if (state_->forked()) return {};
  state_->attempt("budget", [&] {
    if (const std::string note = budget(); !note.empty()) set_note("budget", note);
  });
  if (!state_->stopped.exchange(true)) {
    state_->attempt("late values", [&] { state_->collector.seal_late(); });
    state_->attempt("seal", [&] { state_->collector.collect_replays(); });
    state_->attempt("seal", [&] { state_->collector.seal(Moment::stop); });
    state_->attempt("lost devices", [&] { state_->collector.look_for_lost_devices(); });
    if (has_recorder()) state_->recorder->close();
    const bool is_done = state_->pipe->stop(seconds(state_->config.stop_timeout_seconds));
    if (is_done) {
      state_->rank_lock.reset();
    } else {
      state_->attempt("health.json", [&] { State::tell_that_time_ran_out(state_); });
    }
  }
  return health();
}

}  // namespace trainmon
