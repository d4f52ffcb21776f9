// Feeds the governor and writes down what it chose.
#include "monitor/budget.h"

#include <cmath>
#include <utility>
#include <vector>

#include "base/text.h"

namespace trainmon {
namespace {

constexpr std::size_t kMostChanges = 100;   // that the note lists, the newest
constexpr std::int64_t kNoteInterval = 32;  // steps

std::string keep_json(const Keep& keep) {
  return list_text(std::vector{keep.part, keep.of});
}

}  // namespace

Budget::Budget(std::optional<double> budget, std::int64_t every) : budget_(budget), every_(every) {
  begin();
}

void Budget::begin() {
  governor_.reset();
  if (budget_) governor_.emplace(*budget_, every_);
  steps_ = 0;
  own_seconds_ = seconds_ = 0.0;
}

bool Budget::follow(std::optional<double> budget, std::int64_t every, std::int64_t next_step) {
  if (budget == budget_ && every == every_) return false;
  const bool ends = budget_ && !budget;
  budget_ = budget;
  every_ = every;
  begin();
  if (ends) add_change(next_step, "end");
  return ends;
}

bool Budget::take(const StepTime& step, std::int64_t next_step, std::int64_t alerts) {
  if (steps_ == 0) {
    add_change(next_step - 1, "begin");  // as it was for the step that has ended
  } else {
    own_seconds_ += step.own;  // the first step is not typical
    seconds_ += step.seconds;
  }
  ++steps_;
  const bool was_in_burst = governor_->in_burst();
  bool changed = governor_->take(step);
  const bool is_found = alerts > alerts_ && governor_->found();
  alerts_ = alerts;
  changed = changed || is_found;
  if (changed) {
    const bool is_over = was_in_burst && !governor_->in_burst();
    add_change(next_step, is_found ? "found" : is_over ? "found_over" : "share");
  }
  return changed;
}

bool Budget::is_note_due() const {
  return steps_ % kNoteInterval == 0;
}

void Budget::add_change(std::int64_t from_step, const char* why) {
  const std::vector<std::pair<std::string, std::string>> change = {
      {"from_step", std::to_string(from_step)},
      {"kept", keep_json(keep())},
      {"every", std::to_string(every_)},
      {"why", json_string(why)}};
  changes_.push_back(json_object(change));
  last_change_ = from_step;
  if (changes_.size() > kMostChanges) {
    changes_.erase(changes_.begin());
    ++older_changes_;
  }
}

std::string Budget::note() const {
  const bool is_known = governor_ && governor_->decided() && seconds_ > 0.0;
  const auto number = [](double value) {
    return std::isfinite(value) ? number_text(value) : "null";
  };
  const auto known = [&](auto value) { return is_known ? number(value(*governor_)) : "null"; };
  const std::vector<std::pair<std::string, std::string>> members = {
      {"budget", budget_ ? number(*budget_) : "null"},
      {"share", known([](const Governor& g) { return g.share(); })},
      {"spent", known([&](const Governor& g) { return g.factor() * own_seconds_ / seconds_; })},
      {"recorded_cost", known([](const Governor& g) { return g.recorded_cost(); })},
      {"factor", known([](const Governor& g) { return g.factor(); })},
      {"out_of_reach", governor_ && governor_->is_out_of_reach() ? "true" : "false"},
      {"kept", keep_json(keep())},
      {"every", std::to_string(every_)},
      {"since_step", changes_.empty() ? "null" : std::to_string(last_change_)},
      {"changes", json_list(changes_)},
      {"older_changes", std::to_string(older_changes_)}};
  return json_object(members);
}

}  // namespace trainmon
