// The one place that joins config, collect, pipe, sinks and rules.
#include "monitor/state.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/process.h"
#include "detect/step_checks.h"
#include "monitor/assembly.h"
#include "pipe/rank_lock.h"
#include "rules/non_finite.h"
#include "trainmon/error.h"

namespace trainmon {

Monitor::State::State(const Config& wanted, const Identity& who, MonitorParts parts)
    : config(checked(wanted)),
      identity(who),
      run(parts.directory.empty() ? claim_run(config.out, who, config.eps, rank_lock)
                                  : given_directory(parts.directory, who, config.eps, rank_lock)),
      on_alert(std::move(parts.on_alert)),
      console(parts.alert_text ? std::move(parts.alert_text) : plain_alert_text(who.rank)),
      started(utc_now()),
      budget(config.budget, schedule_of(config, who).every),
      collector(
          {schedule_of(config, who, budget.keep()), config.eps, config.threads, config.clock,
           config.checks, static_cast<std::size_t>(config.max_series),
           static_cast<std::size_t>(config.max_scalars), who.rank},
          [this](RecordBatch&& batch) { pipe->submit(std::move(batch)); },
          [this] { pipe->wake(); }) {
  std::vector<std::unique_ptr<Sink>> sinks = sinks_of(config);
  for (const auto& sink : sinks) {
    if (auto* in_memory = dynamic_cast<MemorySink*>(sink.get())) memory = in_memory;
  }
  for (auto& sink : parts.sinks) sinks.push_back(std::move(sink));
  std::vector<std::unique_ptr<Rule>> rules;
  rules.push_back(std::make_unique<NonFiniteRule>());
  auto first = std::make_unique<FirstNonFinite>(
      who.rank, config.clock, [this](std::int32_t optimizer, std::int64_t window) {
        return collector.windows().step_of(optimizer, window);
      });
  first_non_finite = first.get();
  rules.push_back(std::move(first));
  if (config.checks) {
    rules.push_back(std::make_unique<detect::StepChecks>(
        who.rank, [this](std::int32_t optimizer) { return knows_formula(optimizer); },
        who.world_size == 1));
  }
  standing_rules = rules.size();
  for (auto& rule : alert_rules_of(config)) rules.push_back(std::move(rule));
  has_own_rules = !parts.rules.empty();
  collector.set_limit(std::min(limit_of(config), parts.alert_limit));
  for (auto& rule : parts.rules) rules.push_back(std::move(rule));
  has_alert_rules = rules.size() > standing_rules;
  run.clock = config.clock;
  run.grad_acc_steps = config.grad_acc_steps;
  run.start_steps = [this] { return collector.windows().start_steps(); };
  PipeOptions options;
  options.queue_bytes = mebibytes(config.queue_mb);
  options.overflow = config.overflow;
  options.flush_interval = seconds(config.flush_seconds);
  options.device_timeout = seconds(config.device_timeout_seconds);
  options.latest_bytes = mebibytes(config.latest_mb);
  options.overflow_series = collector.series().overflow();
  pipe =
      std::make_shared<Pipe>(options, run, collector.series(), std::move(sinks), std::move(rules));
  if (parts.directory.empty()) {
    control_file.emplace(control_path(run.directory.parent_path().parent_path()), config);
    look_at_control();
  }
  write_run_json();
  // A disk that fills up later still has room for this one, and readers ask it what was lost.
  attempt("health.json", [this] { write_health(false); });
  // It needs room on the disk, which may be full: the run goes on without it.
  attempt("the flight recorder", [this] {
    if (config.recorder_mb <= 0.0) return;
    auto made =
        std::make_unique<FlightRecorder>(run, collector.series(), mebibytes(config.recorder_mb));
    flight_copies = std::make_unique<FlightCopies>(made->path());
    recorder = std::move(made);  // who sees one has the other
    collector.record_in(recorder.get());
  });
}

void Monitor::State::start(const std::shared_ptr<State>& state) {
  State* self = state.get();
  PipeCalls calls;
  calls.before_flush = [self] {
    self->collector.collect_replays();
    self->collector.try_seal(Moment::interval);
  };
  calls.annotate = [self](Alert& alert) {
    const int optimizer = self->collector.series().at(alert.key.series).optimizer;
    alert.step = self->collector.windows().step_of(optimizer, alert.key.window);
  };
  calls.on_alert = [self](const Alert& alert) {
    self->alerts.fetch_add(1, std::memory_order_relaxed);
    const Series& series = self->collector.series().at(alert.key.series);
    if (self->recorder != nullptr) {
      self->recorder->alert(alert);
      if (alert.count == 1 && !self->copy_due) self->copy_due = alert.step;
    }
    const bool is_check = detect::is_check(alert.rule);
    if (is_check || !alert.stat.empty()) self->console.tell(alert, series);
    if (is_check) self->note_failed_check(alert);
    if (self->on_alert) self->on_alert(alert, series);
  };
  calls.after_flush = [self](bool last) { self->keep_house(last); };
  // A process killed before the next flush must not leave rows whose step nobody can tell.
  calls.before_write = [self] {
    if (self->starts_changed) self->write_run_json();
    if (self->copy_due && keep_lock(self->rank_lock)) self->keep_flight_copy();
  };
  calls.may_write = [self] {
    if (keep_lock(self->rank_lock)) return;
    throw SinkError("another_run",
                    "the folder of this run was deleted, and another run writes to " +
                        self->run.directory.parent_path().string());
  };
  if (self->control_file || self->recorder) calls.each_second = [self] { self->look_around(); };
  self->pipe->start(std::move(calls), state);
}

void Monitor::State::part_failed(std::string_view part, std::string_view why) noexcept {
  try {
    {
      const std::lock_guard lock(facts_mutex);
      if (!parts_off.emplace(part, why).second) {
        errors.fetch_add(1);
        return;
      }
    }
    log_line(
        "rank " + std::to_string(run.rank) + ": " + std::string(part) +
        " failed and is counted in health.json; training is not affected: " + std::string(why));
  } catch (const std::exception&) {  // no memory to say so
    errors.fetch_add(1);
  }
}

void Monitor::State::note_failed_check(const Alert& alert) {
  ++failed_checks;
  const std::lock_guard lock(facts_mutex);
  if (!failed_check.empty()) return;
  failed_check = "check " + alert.rule + " failed at step " + std::to_string(alert.step);
}

Health Monitor::State::health() {
  // A producer that was in the middle of a row when stop() came: its row is dropped, and counted.
  if (stopped) attempt("seal", [&] { collector.try_seal(Moment::stop); });
  Health now;
  {
    const std::lock_guard lock(facts_mutex);
    now.refused = refused;
    now.parts_off = parts_off;
    now.errors = static_cast<std::int64_t>(parts_off.size()) + errors.load();
  }
  const auto lost = static_cast<std::int64_t>(collector.replays_lost());
  if (lost > 0) now.refused["replay_ring_full"] = lost;
  const std::int64_t left_out = collector.scalar_names().values_left_out();
  if (left_out > 0) now.scalars_dropped["max_scalars"] = left_out;
  if (no_numbers > 0) now.scalars_dropped["no_number"] = no_numbers;
  pipe->report(now, collector.rows_produced());
  return now;
}

}  // namespace trainmon
