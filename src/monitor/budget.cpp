// Feeds the governor and writes down what it chose.
#include "monitor/budget.h"

namespace trainmon {
namespace {

using json = nlohmann::ordered_json;

constexpr std::size_t kMostChanges = 100;   // that the note lists, the newest
constexpr std::int64_t kNoteInterval = 32;  // steps

json keep_json(const Keep& keep) {
  return json::array({keep.part, keep.of});
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
  json change;
  change["from_step"] = from_step;
  change["kept"] = keep_json(keep());
  change["every"] = every_;
  change["why"] = why;
  if (changes_.size() == kMostChanges) {
    changes_.erase(0);
    ++older_changes_;
  }
  changes_.push_back(std::move(change));
}

std::string Budget::note() const {
  const bool is_known = governor_ && governor_->decided() && seconds_ > 0.0;
  const auto known = [&](auto value) { return is_known ? json(value(*governor_)) : json(); };
  json note;
  note["budget"] = budget_ ? json(*budget_) : json();
  note["share"] = known([](const Governor& g) { return g.share(); });
  note["spent"] = known([&](const Governor& g) { return g.factor() * own_seconds_ / seconds_; });
  note["recorded_cost"] = known([](const Governor& g) { return g.recorded_cost(); });
  note["factor"] = known([](const Governor& g) { return g.factor(); });
  note["out_of_reach"] = governor_ && governor_->is_out_of_reach();
  note["kept"] = keep_json(keep());
  note["every"] = every_;
  note["since_step"] = changes_.empty() ? json() : changes_.back()["from_step"];
  note["changes"] = changes_;
  note["older_changes"] = older_changes_;
  return note.dump();
}

}  // namespace trainmon
