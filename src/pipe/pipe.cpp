// One loop: take in, deliver what is ready, flush when the interval has passed, until stopped.
#include "pipe/pipe.h"

#include <algorithm>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "base/failpoint.h"
#include "base/log.h"
#include "base/signals_blocked.h"
#include "trainmon/error.h"

namespace trainmon {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kSound = std::chrono::seconds(10);  // before a sink is said to write again
constexpr auto kSecond = std::chrono::seconds(1);
constexpr auto kBreath = std::chrono::milliseconds(50);  // after a failure nobody foresaw

}  // namespace

Pipe::Pipe(PipeOptions options, RunInfo run, const SeriesTable& series,
           std::vector<std::unique_ptr<Sink>> sinks, std::vector<std::unique_ptr<Rule>> rules)
    : options_(options),
      run_(std::move(run)),
      series_(series),
      rules_(std::move(rules)),
      queue_(options.queue_bytes, options.overflow),
      latest_(options.latest_bytes) {
  for (auto& sink : sinks) outlets_.emplace_back().sink = std::move(sink);
}

void Pipe::start(PipeCalls calls, std::shared_ptr<void> keep_alive) {
  calls_ = std::move(calls);
  const SignalsBlocked blocked;
  try {
    if (const Failure failure = failpoint("pipe.thread"); failure.error != 0) {
      throw std::system_error(failure.error, std::generic_category());
    }
    thread_ =
        std::thread([self = shared_from_this(), keep = std::move(keep_alive)] { self->run(); });
  } catch (const std::system_error& error) {
    throw std::runtime_error(std::string("the writer thread cannot be started: ") + error.what() +
                             ": this process may have no more threads (see `ulimit -u` and the "
                             "limit of tasks of its container)");
  }
}

void Pipe::submit(RecordBatch batch) noexcept {
  queue_.push(std::move(batch), std::this_thread::get_id() != writer_.load());
}

template <typename Work>
bool Pipe::attempt(const char* trouble, const Work& work) noexcept {
  const auto tell = [&](const char* why) noexcept {
    try {
      {
        const std::lock_guard lock(account_mutex_);
        ++errors_;
      }
      log_line_limited(trouble, std::string(trouble) + ": " + why);
    } catch (...) {  // no memory to say so: it is counted
    }
  };
  try {
    work();
    return true;
  } catch (const std::exception& error) {
    tell(error.what());
  } catch (...) {
    tell("an unknown exception");
  }
  return false;
}

void Pipe::run() noexcept {
  writer_.store(std::this_thread::get_id());
  next_flush_ = Clock::now() + options_.flush_interval;
  next_look_ = calls_.each_second ? Clock::now() + kSecond : Clock::time_point::max();
  while (!stopping_.load(std::memory_order_acquire)) {
    if (!attempt("the writer thread failed", [this] { turn(); })) {
      std::this_thread::sleep_for(kBreath);
    }
  }
  finish();
}

void Pipe::turn() {
  const std::uint64_t asked = settle_asked_.load(std::memory_order_acquire);
  // Somebody waits: look at what was submitted before he asked, and soon again for late values.
  const bool hurries = asked > settle_done_;
  const auto soon = Clock::now() + std::chrono::milliseconds(pending_.empty() ? 0 : 2);
  take_in(std::min({next_flush_, next_look_, hurries ? soon : Clock::time_point::max()}));
  deliver_ready(false);
  settled(asked);
  if (Clock::now() >= next_look_) {
    attempt("cannot look for changes", calls_.each_second);
    next_look_ = Clock::now() + kSecond;
  }
  if (Clock::now() < next_flush_) return;
  next_flush_ = Clock::now() + options_.flush_interval;
  attempt("cannot take in what is open", calls_.before_flush);
  take_in(Clock::now());
  deliver_ready(false);
  flush_sinks();
}

void Pipe::take_in(Clock::time_point deadline) {
  std::list<Queued> taken = queue_.pop_all(deadline);
  for (Queued& one : taken) one.deadline = Clock::now() + options_.device_timeout;
  pending_.splice(pending_.end(), taken);
  note_oldest();
}

void Pipe::note_oldest() {
  oldest_taken_ns_.store(pending_.empty() ? 0 : pending_.front().batch.time_ns,
                         std::memory_order_relaxed);
}

// Batches that wait for a device do not hold up the ones behind them.
void Pipe::deliver_ready(bool give_up) {
  for (auto next = pending_.begin(); next != pending_.end();) {
    RecordBatch& batch = next->batch;
    if (batch.late != nullptr) {
      if (batch.late->ready()) {
        batch.late->fill(batch);
      } else if (give_up || Clock::now() >= next->deadline || batch.late->lost()) {
        for (Row& row : batch.rows) row.key.flags |= flag::kNotReady;
        batch.checks.clear();
      } else {
        ++next;
        continue;
      }
      batch.late = nullptr;
    }
    deliver(batch);
    queue_.release(next->bytes);
    next = pending_.erase(next);
    note_oldest();
  }
}

void Pipe::replace_rules(std::uint64_t batch, std::size_t first,
                         std::vector<std::unique_ptr<Rule>> rules) {
  const std::lock_guard lock(account_mutex_);
  next_rules_ = NextRules{batch, first, std::move(rules)};
}

void Pipe::follow_rules(std::uint64_t batch) {
  const std::lock_guard lock(account_mutex_);
  if (!next_rules_ || batch < next_rules_->batch) return;
  const std::size_t first = std::min(next_rules_->first, rules_.size());
  for (const auto& rule : next_rules_->rules) {
    for (std::size_t i = first; i < rules_.size(); ++i) rule->keep_history_of(*rules_[i]);
  }
  rules_.reserve(first + next_rules_->rules.size());  // the rest cannot fail
  rules_.resize(first);
  for (auto& rule : next_rules_->rules) rules_.push_back(std::move(rule));
  next_rules_.reset();
}

// One that fails must not blind the others.
void Pipe::deliver(RecordBatch& batch) noexcept {
  attempt("what is beyond max_series stays", [&] { drop_overflow(batch); });
  attempt("new rules cannot be followed", [&] { follow_rules(batch.number); });
  for (auto& rule : rules_) {
    attempt("a rule failed", [&] { rule->look(batch, series_, batch.alerts); });
  }
  attempt("a rule told of a series that there is not", [&] {
    const auto is_unknown = [&](const Alert& one) { return one.key.series >= series_.size(); };
    if (std::erase_if(batch.alerts, is_unknown) > 0)
      throw std::out_of_range("its alert is left out");
  });
  attempt("telling alerts failed", [&] {
    for (Alert& alert : batch.alerts) calls_.annotate(alert);
    for (const Alert& alert : batch.alerts) calls_.on_alert(alert);
  });
  attempt("keeping the last windows failed", [&] { latest_.look(batch, series_); });
  {
    const std::lock_guard lock(account_mutex_);
    for (const Alert& alert : batch.alerts) alerts_ += alert.count == 1 ? 1 : 0;
  }
  if (calls_.before_write) attempt("cannot write run files", calls_.before_write);
  const std::exception_ptr refused = refusal();
  for (Outlet& outlet : outlets_) write(outlet, batch, refused);
  if (!batch.alerts.empty()) flush_sinks();
}

std::exception_ptr Pipe::refusal() const noexcept {
  try {
    if (calls_.may_write) calls_.may_write();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

void Pipe::write(Outlet& outlet, const RecordBatch& batch,
                 const std::exception_ptr& refused) noexcept {
  try {
    if (refused) std::rethrow_exception(refused);
    if (!outlet.open) {
      outlet.sink->open(run_, series_);
      outlet.open = true;
    }
    if (outlet.owed.empty()) {
      outlet.sink->write(batch);
    } else {
      outlet.sink->write(outlet.owed.before(batch));
      outlet.owed = {};
    }
  } catch (const SinkError& error) {
    return lose(outlet, batch, error.reason().c_str(), error.what());
  } catch (const std::bad_alloc&) {
    return lose(outlet, batch, kNoMemory, "out of memory");
  } catch (const std::exception& error) {
    return lose(outlet, batch, "error", error.what());
  } catch (...) {
    return lose(outlet, batch, "error", "an unknown exception");
  }
  bool is_sound = false;
  {
    const std::lock_guard lock(account_mutex_);
    // After a stop that ran out of time these rows have already been counted as dropped.
    if (!abandoned_) {
      outlet.written += batch.row_count();
      ++outlet.batches;
    }
    const auto now = std::chrono::steady_clock::now();
    if (outlet.degraded) {
      outlet.degraded = false;
      outlet.sound_since = now;
    }
    // A nearly full disk takes small batches and refuses large ones: that is not said to be over.
    is_sound = outlet.said_to_fail && now - outlet.sound_since >= kSound;
    if (is_sound) outlet.said_to_fail = false;
  }
  if (!is_sound) return;
  attempt("a sink writes again",
          [&] { log_line("sink " + std::string(outlet.sink->name()) + ": writing again"); });
}

// The rows are gone; that they are, what became of their windows, and what rules found in them is
// told once it can be.
void Pipe::lose(Outlet& outlet, const RecordBatch& batch, const char* reason,
                const char* what) noexcept {
  fail(outlet, batch.row_count(), reason, what);
  auto values = static_cast<std::int64_t>(batch.scalars.size());
  try {
    values = outlet.owed.add(batch, reason);
  } catch (...) {  // then only health.json tells
  }
  lose_scalars(outlet, values, reason);
}

void Pipe::lose_scalars(Outlet& outlet, std::int64_t values, const char* reason) noexcept {
  if (values == 0) return;
  const std::lock_guard lock(account_mutex_);
  try {
    outlet.scalars_dropped[reason] += values;
  } catch (const std::bad_alloc&) {  // it is an error that is counted
  }
}

void Pipe::fail(Outlet& outlet, std::int64_t rows, const char* reason, const char* what) noexcept {
  bool is_first = false;
  {
    const std::lock_guard lock(account_mutex_);
    ++errors_;
    ++failures_;
    if (!abandoned_ && rows > 0) {
      try {
        outlet.dropped[reason] += rows;
      } catch (const std::bad_alloc&) {
        outlet.lost_to_memory += rows;
      }
    }
    is_first = !std::exchange(outlet.said_to_fail, true);
    outlet.degraded = true;
  }
  if (!is_first) return;
  attempt("a sink cannot write", [&] {
    log_line("sink " + std::string(outlet.sink->name()) + " cannot write (" + reason +
             "): " + what + "; training goes on, losses are counted in health.json");
  });
}

// Calls something of a sink other than write().
template <typename Work>
void Pipe::use(Outlet& outlet, const Work& work) noexcept {
  try {
    work();
  } catch (const SinkError& error) {
    fail(outlet, 0, error.reason().c_str(), error.what());
  } catch (const std::exception& error) {
    fail(outlet, 0, "error", error.what());
  } catch (...) {
    fail(outlet, 0, "error", "an unknown exception");
  }
}

void Pipe::flush_sinks() noexcept {
  for (Outlet& outlet : outlets_) {
    if (outlet.open) use(outlet, [&] { outlet.sink->flush(); });
  }
  keep_house(false);
}

void Pipe::keep_house(bool last) noexcept {
  attempt("cannot write run files", [&] { calls_.after_flush(last); });
}

void Pipe::finish() noexcept {
  const Clock::time_point deadline{std::chrono::nanoseconds(stop_deadline_ns_.load())};
  take_in(Clock::now());
  deliver_ready(false);
  while (!pending_.empty() && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    deliver_ready(false);
  }
  deliver_ready(true);
  const std::exception_ptr refused = refusal();
  for (Outlet& outlet : outlets_) {
    // No further batch will bring along what is owed.
    if (outlet.owed.empty()) continue;
    write(outlet, outlet.owed.last(), refused);
    lose_scalars(outlet, outlet.owed.scalars(), outlet.owed.reason().c_str());
  }
  flush_sinks();
  for (Outlet& outlet : outlets_) {
    if (outlet.open) use(outlet, [&] { outlet.sink->close(); });
  }
  keep_house(true);
  {
    const std::lock_guard lock(account_mutex_);
    finished_ = true;
  }
  finished_changed_.notify_all();
}

bool Pipe::stop(std::chrono::nanoseconds timeout) {
  if (!thread_.joinable()) return true;
  const auto deadline = Clock::now() + timeout;
  // Late values get half of the time, the disk the rest.
  stop_deadline_ns_.store((Clock::now() + timeout / 2).time_since_epoch().count());
  queue_.close();
  stopping_.store(true, std::memory_order_release);
  queue_.wake();
  std::unique_lock lock(account_mutex_);
  if (finished_changed_.wait_for(lock, deadline - Clock::now(), [&] { return finished_; })) {
    lock.unlock();
    thread_.join();
    return true;
  }
  abandoned_ = true;
  finished_changed_.notify_all();
  thread_.detach();
  return false;
}

}  // namespace trainmon
