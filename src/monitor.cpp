// The only file that knows config, collect, pipe, sinks and rules: it wires them together.
#include "trainmon/monitor.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <future>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "base/process.h"
#include "base/signals_blocked.h"
#include "base/text.h"
#include "budget.h"
#include "collect/collector.h"
#include "config/key_table.h"
#include "control_file.h"
#include "model/first_bad.h"
#include "pipe/pipe.h"
#include "pipe/run_directory.h"
#include "rules/alert_console.h"
#include "rules/first_non_finite.h"
#include "rules/non_finite.h"
#include "sinks/memory.h"
#include "sinks/sinks.h"

namespace trainmon {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kMiB = 1024.0 * 1024.0;
constexpr auto kHealthInterval = std::chrono::seconds(30);
constexpr std::size_t kNonFiniteRules = 2;            // the first of all rules
constexpr auto kLastWords = std::chrono::seconds(1);  // of a stop that ran out of time

// Counts forks this process is the child of: a monitor made before the last one is dead here,
// because its writer thread stayed in the parent.
std::atomic<std::uint64_t> forks{0};

void watch_forks() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  (void)registered;
}

std::size_t mib(double value) {
  return static_cast<std::size_t>(value * kMiB);
}

std::chrono::nanoseconds seconds(double value) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(value * 1e9));
}

Schedule schedule_of(const Config& config, const Identity& identity, const Keep& keep = {}) {
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

Config checked(const Config& config) {
  if (std::vector<std::string> faults = validate(config); !faults.empty()) {
    throw ConfigError(std::move(faults));
  }
  return config;
}

double limit_of(const Config& config) {
  return config.alert_limit > 0.0 ? config.alert_limit : std::numeric_limits<double>::infinity();
}

void add_alert_rules(const Config& config, std::vector<std::unique_ptr<Rule>>& rules) {
  std::vector<Stat> stats;
  for (const std::string& name : config.alert_stats) stats.push_back(*stat_from_name(name));
  if (config.alert_deviation > 0.0) {
    rules.push_back(make_deviation_rule(
        {.deviation = config.alert_deviation, .stats = stats, .warmup = config.alert_warmup}));
  }
  if (config.alert_limit > 0.0) {
    rules.push_back(make_limit_rule({.limit = config.alert_limit, .stats = stats}));
  }
}

}  // namespace

// Shared with the writer thread, so that a thread stuck in a write outlives the monitor safely.
class Monitor::State {
 public:
  State(const Config& wanted, const Identity& who, MonitorParts parts)
      : config(checked(wanted)),
        identity(who),
        run(parts.directory.empty() ? claim_run(config.out, who, config.eps, rank_lock)
                                    : given_directory(parts.directory, who, config.eps, rank_lock)),
        on_alert(std::move(parts.on_alert)),
        console(parts.alert_text ? std::move(parts.alert_text) : plain_alert_text(who.rank)),
        started(utc_now()),
        budget(config.budget, schedule_of(config, who).every),
        collector(
            {schedule_of(config, who, budget.keep()), config.eps, config.threads, config.clock},
            [this](RecordBatch&& batch) { pipe->submit(std::move(batch)); },
            [this] { pipe->wake(); }) {
    std::vector<std::unique_ptr<Sink>> sinks;
    for (const std::string& name : config.sinks) {
      if (name == "log") sinks.push_back(make_log_sink(mib(config.segment_mb)));
      if (name == "csv") sinks.push_back(make_csv_sink(mib(config.segment_mb)));
      if (name == "sqlite") sinks.push_back(make_sqlite_sink());
      if (name == "tensorboard") {
        sinks.push_back(make_tensorboard_sink(static_cast<std::size_t>(config.tensorboard_tags)));
      }
      if (name == "memory") {
        auto sink = std::make_unique<MemorySink>();
        memory = sink.get();
        sinks.push_back(std::move(sink));
      }
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
    add_alert_rules(config, rules);
    has_own_rules = !parts.rules.empty();
    collector.set_limit(std::min(limit_of(config), parts.alert_limit));
    for (auto& rule : parts.rules) rules.push_back(std::move(rule));
    has_alert_rules = rules.size() > kNonFiniteRules;
    run.clock = config.clock;
    run.grad_acc_steps = config.grad_acc_steps;
    run.start_steps = [this] { return collector.windows().start_steps(); };
    PipeOptions options;
    options.queue_bytes = mib(config.queue_mb);
    options.overflow = config.overflow;
    options.flush_interval = seconds(config.flush_seconds);
    options.device_timeout = seconds(config.device_timeout_seconds);
    options.latest_bytes = mib(config.latest_mb);
    pipe = std::make_shared<Pipe>(options, run, collector.series(), std::move(sinks),
                                  std::move(rules));
    if (parts.directory.empty()) {
      control_file.emplace(control_path(run.directory.parent_path().parent_path()), config);
      look_at_control();
    }
    write_run_json();
    // A disk that fills up later still has room for this one, and readers ask it what was lost.
    attempt("health.json", [this] { write_health(false); });
  }

  static void start(const std::shared_ptr<State>& state) {
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
      if (!alert.stat.empty()) self->console.tell(alert, series);
      if (self->on_alert) self->on_alert(alert, series);
    };
    calls.after_flush = [self](bool last) { self->keep_house(last); };
    // A process killed before the next flush must not leave rows whose step nobody can tell.
    calls.before_write = [self] {
      if (self->starts_changed) self->write_run_json();
    };
    if (self->control_file) calls.each_second = [self] { self->look_around(); };
    self->pipe->start(std::move(calls), state);
  }

  bool alive() const {
    return !stopped.load(std::memory_order_relaxed) &&
           forks.load(std::memory_order_relaxed) == born_after_forks;
  }
  bool forked() const { return forks.load(std::memory_order_relaxed) != born_after_forks; }

  Observed observe_on_device(SeriesId series, const TensorView& tensor, std::uint32_t flags,
                             const std::optional<Address>& address = std::nullopt) {
    thread_local DeviceSweep sweep;
    sweep.clear();
    const Observed done = add_to(sweep, series, tensor, flags, address);
    return done == Observed::recorded ? launch(sweep) : done;
  }

  void observe_all(std::span<const SeriesId> series, std::span<const TensorView> tensors,
                   std::span<Observed> out, std::uint32_t flags, const TensorView* scale) {
    thread_local DeviceSweep sweep;
    sweep.clear();
    sweep.scale = scale;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].device == Device::cpu) {
        collector.observe(series[i], tensors[i], flags);
        out[i] = Observed::recorded;
      } else {
        out[i] = add_to(sweep, series[i], tensors[i], flags, std::nullopt);
      }
    }
    launch(sweep);
    sweep.scale = nullptr;
  }

  Observed add_to(DeviceSweep& sweep, SeriesId series, const TensorView& tensor,
                  std::uint32_t flags, const std::optional<Address>& address) {
    if (tensor.device != Device::cuda) return Observed::elsewhere;
    try {
      if (!sweep.takes(tensor)) launch(sweep);
      const bool added = collector.observe_on_device(sweep, series, tensor, flags, address);
      return added ? Observed::recorded : Observed::elsewhere;
    } catch (const std::invalid_argument& error) {
      refuse(error.what(), 1);
      return Observed::refused;
    }
  }

  // Counts what was not launched.
  Observed launch(DeviceSweep& sweep) {
    const auto rows = static_cast<std::int64_t>(sweep.rows.size());
    const std::string why = collector.launch_on_device(sweep);
    if (why.empty()) return Observed::recorded;
    refuse(why, rows);
    return Observed::refused;
  }

  // True for the first of its reason.
  bool refuse(std::string_view reason, std::int64_t tensors) {
    const std::lock_guard lock(facts_mutex);
    std::int64_t& count = refused[std::string(reason)];
    count += tensors;
    return count == tensors;
  }

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

  void part_failed(std::string_view part, std::string_view why) noexcept {
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

  bool settle(std::chrono::nanoseconds timeout) {
    attempt("seal", [&] {
      collector.collect_replays();
      collector.seal(Moment::interval);
    });
    return pipe->settle(timeout);
  }

  // Those of this process. Never destroyed: monitors may outlive everything static.
  class AtWork {
   public:
    void add(const std::shared_ptr<State>& state) {
      const std::lock_guard lock(mutex_);
      std::erase_if(states_, [](const auto& known) { return known.expired(); });
      states_.push_back(state);
    }
    std::vector<std::shared_ptr<State>> of(const std::filesystem::path& path) {
      namespace fs = std::filesystem;
      std::error_code error;
      const fs::path wanted = fs::weakly_canonical(path, error);
      std::vector<std::shared_ptr<State>> found;
      // A forked child has none at work, and may have the lock for ever.
      if (forks.load(std::memory_order_relaxed) > 0 && !mutex_.try_lock()) return found;
      if (forks.load(std::memory_order_relaxed) == 0) mutex_.lock();
      const std::lock_guard lock(mutex_, std::adopt_lock);
      for (const auto& known : states_) {
        auto state = known.lock();
        if (state == nullptr || !state->alive()) continue;
        const fs::path own = fs::weakly_canonical(state->run.directory, error);
        const auto [a, b] = std::mismatch(own.begin(), own.end(), wanted.begin(), wanted.end());
        if (a == own.end() || b == wanted.end()) found.push_back(std::move(state));
      }
      return found;
    }

   private:
    std::mutex mutex_;
    std::vector<std::weak_ptr<State>> states_;
  };
  static AtWork& at_work() {
    static auto* all = new AtWork;
    return *all;
  }

  Health health() {
    // A producer that was in the middle of a row when stop() came: its row is dropped, and counted.
    if (stopped) attempt("seal", [&] { collector.try_seal(Moment::stop); });
    Health now;
    {
      const std::lock_guard lock(facts_mutex);
      now.refused = refused;
      now.parts_off = parts_off;
      now.errors = static_cast<std::int64_t>(parts_off.size()) + errors.load();
    }
    pipe->report(now, collector.rows_produced());
    return now;
  }

  void write_run_json() {
    facts_changed = starts_changed =
        false;  // before the look: what comes after it is written again
    try {
      std::string text;
      {
        const std::lock_guard lock(facts_mutex);
        facts.start_steps = collector.windows().start_steps();
        text = run_json(run, identity, config_text, started, facts);
      }
      write_atomically(run.directory / "run.json", text);
    } catch (...) {
      facts_changed = starts_changed = true;  // tried again at the next flush, or batch
      throw;
    }
  }

  void look_at_control() {
    std::optional<ControlFile::Found> found = control_file->look();
    if (!found) return;
    {
      const std::lock_guard lock(facts_mutex);
      facts.notes.insert_or_assign("control_file", json_string(found->fault));
      if (found->fault.empty()) facts.notes.erase("control_file");
      facts_changed = true;
    }
    if (!found->fault.empty()) {
      log_line("rank " + std::to_string(run.rank) +
               ": control.json is not followed, what held before it goes on: " + found->fault);
    }
    if (!found->change) return;
    const std::lock_guard lock(facts_mutex);
    control = std::move(found->change);
    control_versions.fetch_add(1, std::memory_order_release);
  }

  void follow_alerts(const Config& wanted) {
    const std::lock_guard lock(facts_mutex);
    if (has_own_rules || !differ(wanted, following, Follower::alert_rules)) return;
    following = wanted;
    collector.set_limit(limit_of(wanted));
    std::vector<std::unique_ptr<Rule>> rules;
    add_alert_rules(wanted, rules);
    if (!rules.empty()) has_alert_rules = true;
    pipe->replace_rules(collector.next_batch(), kNonFiniteRules, std::move(rules));
  }

  void look_around() {
    look_at_control();
    if (facts_changed) keep_house(false);  // flushes may be rare, and somebody may be waiting
  }

  void keep_house(bool last) {
    first_non_finite->catch_up(last);  // before anything that may throw
    // Somebody may have deleted the directory; the log makes it again, and so do we.
    std::error_code unknown;
    const bool there = std::filesystem::exists(run.directory / "run.json", unknown);
    if (!there && !unknown) make_directories(run.directory);
    console.catch_up(last);
    const auto now = Clock::now();
    const std::int64_t produced = collector.rows_produced();
    if (last || (produced != told_produced && now >= next_health)) {
      next_health = now + kHealthInterval;
      told_produced = produced;
      write_health(last);  // before run.json, which a full disk may have no room for
    }
    if (facts_changed || (!there && !unknown)) write_run_json();
  }

  // The writer thread, and a stop that ran out of time: what the last flush says is not replaced.
  void write_health(bool last) {
    const std::lock_guard lock(health_mutex);
    if (said_last) return;
    const std::filesystem::path path = run.directory / "health.json";
    const std::string text = health_json(health(), last);
    try {
      write_atomically(path, text);
    } catch (const SinkError& error) {
      if (error.reason() != "no_space") throw;
      write_over(path, text);  // a full disk is when people ask what was lost
    }
    said_last = last;
  }

  // The writer thread stands in a write: another one says so, and a disk that hangs for it, too,
  // holds the caller up for a moment only.
  static void tell_that_time_ran_out(const std::shared_ptr<State>& state) {
    auto told = std::make_shared<std::promise<void>>();
    const std::future<void> done = told->get_future();
    {
      const SignalsBlocked blocked;
      std::thread([state, told] {
        state->attempt("health.json", [&] { state->write_health(false); });
        told->set_value();
      }).detach();
    }
    done.wait_for(kLastWords);
  }

  const Config config;
  const std::string config_text = config_to_json(config);  // not made on the writer thread
  const Identity identity;
  std::shared_ptr<void> rank_lock;  // until nothing is written any more
  RunInfo run;                      // constant once constructed
  const std::function<void(const Alert&, const Series&)> on_alert;
  AlertConsole console;  // writer thread only
  const std::string started;
  std::mutex budget_mutex;
  Budget budget;                        // under budget_mutex
  std::atomic<std::int64_t> alerts{0};  // told so far
  std::shared_ptr<Pipe> pipe;
  Collector collector;
  MemorySink* memory = nullptr;
  FirstNonFinite* first_non_finite = nullptr;  // a rule of the pipe
  std::atomic<bool> stopped{false};
  const std::uint64_t born_after_forks = forks.load();
  std::shared_ptr<State> kept_after_fork;  // itself, in a child that must not destroy it

  std::atomic<std::int64_t> errors{0};
  std::atomic<std::int64_t> bad_losses{0};
  std::atomic<bool> facts_changed{true};
  std::atomic<bool> starts_changed{false};  // of the facts, the step an optimizer began at
  std::mutex health_mutex;
  bool said_last = false;  // under health_mutex
  mutable std::mutex facts_mutex;
  RunDescription facts;
  std::map<std::string, std::int64_t> refused;
  std::map<std::string, std::string> parts_off;
  bool has_own_rules = false;
  std::atomic<bool> has_alert_rules{false};  // or had
  Config following = config;                 // under facts_mutex
  std::optional<ControlChange> control;      // under facts_mutex
  std::atomic<std::int64_t> control_versions{0};
  std::optional<ControlFile> control_file;  // writer thread, and before it starts
  // writer thread only
  Clock::time_point next_health{};
  std::int64_t told_produced = 0;
};

Monitor::Monitor(const Config& config, const Identity& identity, MonitorParts parts) {
  watch_forks();
  state_ = std::make_shared<State>(config, identity, std::move(parts));
  State::start(state_);
  State::at_work().add(state_);
}

void settle_monitors_of(const std::filesystem::path& path, double seconds) noexcept {
  try {
    const auto deadline = Clock::now() + trainmon::seconds(seconds);
    for (const auto& state : Monitor::State::at_work().of(path)) {
      state->settle(std::max(deadline - Clock::now(), Clock::duration::zero()));
    }
  } catch (const std::exception&) {  // then what is in the files is read
  }
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
  state_->while_alive("steps", [&] { state_->collector.windows().begin_attempt(optimizer); });
}

void Monitor::end_attempt(int optimizer, std::optional<Fate> fate, double loss_scale) {
  state_->while_alive("steps", [&] {
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
  if (!state_->alive()) return Observed::idle;
  const Address address{window, accum, call};
  try {
    if (tensor.device != Device::cpu) {
      return state_->observe_on_device(series, tensor, flags, address);
    }
    state_->collector.observe_at(series, tensor, address, flags);
  } catch (const std::exception& error) {
    part_failed("observe", error.what());
    return Observed::refused;
  }
  return Observed::recorded;
}

Observed Monitor::observe_scaled(SeriesId series, const TensorView& tensor, double scale,
                                 std::uint32_t flags) {
  if (!state_->alive()) return Observed::idle;
  try {
    state_->collector.observe_scaled(series, tensor, scale, flags);
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

std::string Monitor::reserve_device(int device, std::int64_t tensors, std::int64_t bytes) {
  return state_->collector.reserve_device(device, tensors, bytes);
}

void Monitor::add_late_row(SeriesId series, DType dtype, std::span<const std::int64_t> sizes,
                           std::int64_t window, std::int32_t accum, std::int32_t call,
                           std::uint32_t flags) {
  state_->while_alive("observe", [&] {
    state_->collector.add_late_row(series, dtype, sizes, {window, accum, call}, flags);
  });
}

std::int64_t Monitor::seal_late() {
  std::int64_t ticket = 0;
  state_->while_alive("late values", [&] { ticket = state_->collector.seal_late(); });
  return ticket;
}

void Monitor::fulfil(std::int64_t ticket, std::span<const RowState> states) {
  state_->while_alive("late values", [&] {
    if (state_->collector.fulfil(ticket, states)) return;
    part_failed("late values", "a device brought values for a batch that does not wait for them");
  });
}

void Monitor::add_scalar(std::string_view name, double value, std::optional<std::int64_t> window) {
  state_->while_alive("scalars", [&] {
    state_->collector.add_scalar(name, value, window);
    if (is_loss(name) && !std::isfinite(value)) state_->bad_losses.fetch_add(1);
  });
}

void Monitor::declare(Declared declared) {
  if (state_->alive()) state_->collector.declare(std::move(declared));
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
  state_->while_alive("seal", [&] { state_->collector.seal(moment); });
}

bool Monitor::settle(double timeout) {
  if (!state_->alive()) return false;
  return state_->settle(seconds(timeout));
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
  state_->follow_alerts(config);
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
    changed = budget.take({seconds, own_seconds, recorded}, windows.step(clock),
                          state.alerts.load(std::memory_order_relaxed));
    if (changed) windows.set_keep(budget.keep());
    share = budget.share();
    if (changed || budget.is_note_due()) note = budget.note();
  }
  state.collector.add_scalar("trainmon/recorded", recorded ? 1.0 : 0.0, window);
  if (note) {
    if (share > 0.0) state.collector.add_scalar("trainmon/share", share, window);
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
