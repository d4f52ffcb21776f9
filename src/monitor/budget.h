// The budget of a monitor at work: its governor, what it chose so far, and that as a note.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "collect/governor.h"

namespace trainmon {

// Not thread-safe.
class Budget {
 public:
  // No budget: keep() is every step that `every` allows, for ever.
  Budget(std::optional<double> budget, std::int64_t every);

  // Another budget or `every` from `next_step` on: begins anew. The same ones: false.
  bool follow(std::optional<double> budget, std::int64_t every, std::int64_t next_step);

  bool is_set() const { return governor_.has_value(); }
  Keep keep() const { return governor_ ? governor_->keep() : Keep{}; }
  double share() const { return governor_ ? governor_->share() : 0.0; }

  // A step has ended and `next_step` begins; `alerts` counts those of the run. True when keep() is
  // another one now. Only with a budget.
  bool take(const StepTime& step, std::int64_t next_step, std::int64_t alerts);

  // Whether the note is some steps old.
  bool is_note_due() const;
  // JSON object (docs/formats.md, run.json), also when there is no budget any more.
  std::string note() const;

 private:
  void begin();
  void add_change(std::int64_t from_step, const char* why);

  std::optional<double> budget_;
  std::int64_t every_ = 1;
  std::optional<Governor> governor_;
  std::int64_t steps_ = 0;
  std::int64_t alerts_ = 0;
  double own_seconds_ = 0.0;
  double seconds_ = 0.0;
  std::vector<std::string> changes_;  // JSON objects, the newest last
  std::int64_t last_change_ = 0;      // the step it is from
  std::int64_t older_changes_ = 0;
};

}  // namespace trainmon
