// What the writer thread keeps up beside the sinks: run.json, health.json, control.json.
#include <future>
#include <system_error>
#include <thread>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "base/signals_blocked.h"
#include "base/text.h"
#include "config/key_table.h"
#include "monitor/assembly.h"
#include "monitor/state.h"
#include "pipe/rank_lock.h"
#include "trainmon/error.h"

namespace trainmon {
namespace {

constexpr auto kHealthInterval = std::chrono::seconds(30);
constexpr auto kLastWords = std::chrono::seconds(1);  // of a stop that ran out of time

// Readers need these beside the log, so they outlive what it outlives.
void write_beside_log(const Config& config, const std::filesystem::path& path,
                      const std::string& text) {
  config.fsync == "never" ? write_atomically(path, text) : replace_durably(path, text);
}

}  // namespace

void Monitor::State::write_run_json() {
  if (!keep_lock(rank_lock)) return;
  facts_changed = starts_changed = false;  // before the look: what comes after it is written again
  try {
    std::string text;
    {
      const std::lock_guard lock(facts_mutex);
      facts.start_steps = collector.windows().start_steps();
      text = run_json(run, identity, config_text, started, facts);
    }
    write_beside_log(config, run.directory / "run.json", text);
  } catch (...) {
    facts_changed = starts_changed = true;  // tried again at the next flush, or batch
    throw;
  }
}

void Monitor::State::look_at_control() {
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

void Monitor::State::follow_alerts(const Config& wanted) {
  const std::lock_guard lock(facts_mutex);
  if (has_own_rules || !differ(wanted, following, Follower::alert_rules)) return;
  std::vector<std::unique_ptr<Rule>> rules = alert_rules_of(wanted);  // throws, and nothing changes
  following = wanted;
  collector.set_limit(limit_of(wanted));
  if (!rules.empty()) has_alert_rules = true;
  pipe->replace_rules(collector.next_batch(), standing_rules, std::move(rules));
}

void Monitor::State::look_around() {
  if (control_file) look_at_control();
  if (recorder != nullptr && recorder->found_cut()) {
    part_failed("the flight recorder", recorder->path().string() + " was shortened");
  }
  if (facts_changed) keep_house(false);  // flushes may be rare, and somebody may be waiting
}

void Monitor::State::keep_flight_copy() {
  const std::int64_t step = std::exchange(copy_due, std::nullopt).value_or(-1);
  try {
    flight_copies->keep(step);
  } catch (const SinkError& error) {
    log_line_limited("flight.copy", std::string(error.what()) + ": what the flight recorder held " +
                                        "at the alert of step " + std::to_string(step) +
                                        " is not kept");
  }
}

void Monitor::State::keep_house(bool last) {
  first_non_finite->catch_up(last);                          // before anything that may throw
  if (!keep_lock(rank_lock)) return console.catch_up(last);  // the folder is another run's
  // Somebody may have deleted the directory; the log makes it again, and so do we.
  std::error_code unknown;
  const bool there = std::filesystem::exists(run.directory / "run.json", unknown);
  if (!there && !unknown) make_directories(run.directory);
  console.catch_up(last);
  const auto now = std::chrono::steady_clock::now();
  const std::int64_t produced = collector.rows_produced();
  if (last || (produced != told_produced && now >= next_health)) {
    next_health = now + kHealthInterval;
    told_produced = produced;
    write_health(last);  // before run.json, which a full disk may have no room for
  }
  if (facts_changed || (!there && !unknown)) write_run_json();
}

void Monitor::State::write_health(bool last) {
  const std::lock_guard lock(health_mutex);
  if (said_last || !keep_lock(rank_lock)) return;
  const std::filesystem::path path = run.directory / "health.json";
  const std::string text = health_json(health(), last);
  try {
    write_beside_log(config, path, text);
  } catch (const SinkError& error) {
    if (error.reason() != "no_space") throw;
    write_over(path, text);  // a full disk is when people ask what was lost
  }
  said_last = last;
}

void Monitor::State::tell_that_time_ran_out(const std::shared_ptr<State>& state) {
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

}  // namespace trainmon
