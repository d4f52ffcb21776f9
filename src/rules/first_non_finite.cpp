// Memory is bounded: windows are few that are not settled within kPatience, and one that is bad for
// good ends it.
#include "rules/first_non_finite.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/log.h"
#include "rules/check.h"

namespace trainmon {
namespace {

constexpr auto kPatience = std::chrono::seconds(5);
constexpr std::int64_t kUnknownStep = std::numeric_limits<std::int64_t>::max();
constexpr std::size_t kMostWindows = 64;
constexpr std::size_t kMostCounts = 512;  // of a window: a kind in a backward
constexpr std::size_t kMostCandidates = 32;
constexpr std::size_t kMostLosses = 1024;  // names

template <typename T>
void keep_last(std::vector<T>& list, std::size_t most) {
  if (list.size() > 2 * most)
    list.erase(list.begin(), list.end() - static_cast<std::ptrdiff_t>(most));
}

}  // namespace

FirstNonFinite::FirstNonFinite(int rank, int clock, StepOf step_of)
    : rank_(rank), clock_(clock), step_of_(std::move(step_of)) {}

void FirstNonFinite::look(const RecordBatch& batch, const SeriesTable& series,
                          std::vector<Alert>&) {
  numbers_.note(batch.number);
  timeline_.add(batch);
  if (candidates_.empty()) forget();  // what is around one is told with it
  // Once something is bad that no loss scaler made, only what comes before it is news.
  const bool counts = !told_ || told_->is_routine;
  for (const Row& row : batch.rows) {
    const bool is_bad = (row.key.flags & flag::kNonFinite) != 0;
    const bool is_mask = (row.key.flags & flag::kFirstMasked) != 0;
    if (!counts && !is_bad && !is_mask) continue;
    const Series& of_row = series.at(row.key.series);
    note_window(of_row.optimizer, row.key.window, batch.number);
    if (counts) count(row, of_row);
    if (is_bad) keep(row, of_row);
    if (is_mask) keep_mask(row, of_row);
  }
  for (const Scalar& scalar : batch.scalars) {
    note_window(clock_, scalar.window, batch.number);
    if (!is_loss(scalar.name)) continue;
    // The best one so far begins as infinity. What is bad from the start has rows, too.
    if (std::isfinite(scalar.value) && finite_losses_.size() < kMostLosses) {
      finite_losses_.insert(scalar.name);
    }
    if (!std::isfinite(scalar.value) && !finite_losses_.contains(scalar.name)) continue;
    auto known = std::find_if(losses_.begin(), losses_.end(),
                              [&](const Loss& one) { return one.window == scalar.window; });
    if (known == losses_.end()) known = losses_.insert(known, {scalar.window, {}});
    add_loss(known->value, scalar.value);
    if (counts && !std::isfinite(scalar.value)) keep_loss(scalar);
  }
  for (const Declared& group : batch.declared) {
    for (const DeclaredValue& value : group.values) {
      if (!setting_ && is_bad_setting(value))
        setting_ = {group.optimizer, group.window, group.group, value};
    }
  }
  for (const Outcome& outcome : batch.outcomes) {
    note_window(outcome.optimizer, outcome.window, batch.number);
  }
  if (!candidates_.empty()) catch_up(false);
}

void FirstNonFinite::forget() {
  timeline_.keep_last(kMostWindows);
  keep_last(masks_, kMostWindows);
  keep_last(counts_, kMostCounts);
  keep_last(losses_, kMostWindows);
}

void FirstNonFinite::note_window(std::int32_t optimizer, std::int64_t window,
                                 std::uint64_t number) {
  const auto index = static_cast<std::size_t>(optimizer);
  if (index >= newest_.size()) newest_.resize(index + 1);
  if (window > newest_[index].window) newest_[index] = {window, number};
}

void FirstNonFinite::count(const Row& row, const Series& series) {
  const auto is_of_row = [&](const Count& one) {
    return one.window == row.key.window && one.optimizer == series.optimizer &&
           one.accum == row.key.accum && one.kind == series.kind;
  };
  auto known = std::find_if(counts_.rbegin(), counts_.rend(), is_of_row);
  if (known == counts_.rend()) {
    counts_.push_back({series.optimizer, row.key.window, row.key.accum, series.kind});
    known = counts_.rbegin();
  }
  known->seen.add((row.key.flags & flag::kNonFinite) != 0, row.key.seq, series.name);
}

void FirstNonFinite::keep(const Row& row, const Series& series) {
  const bool is_told = told_ && !told_->is_routine && series.optimizer == told_optimizer_;
  if (is_told && row.key.window > told_window_) return;  // a storm costs no more than this
  keep({series.optimizer, row.key.window, row.key, series.kind, "", Clock::now()},
       [&] { return non_finite_text(series, row.state); });
}

void FirstNonFinite::keep_mask(const Row& row, const Series& series) {
  const bool is_known = std::ranges::any_of(masks_, [&](const Candidate& one) {
    return one.optimizer == series.optimizer && one.window == row.key.window;
  });
  if (is_known) return;  // rows of activations come in the order of execution
  masks_.push_back({series.optimizer, row.key.window, row.key, series.kind,
                    non_finite_text(series, row.state), Clock::now()});
}

FirstNonFinite::Candidate FirstNonFinite::beginning_of(const Candidate& candidate) const {
  const BadPlace place = place_of(candidate);
  if (place.is_routine) return candidate;
  const bool is_logged = candidate.kind == kLogged;
  for (const Candidate& mask : masks_) {
    const BadPlace before = place_of(mask);
    const bool is_of_step = before.step == place.step &&
                            (is_logged || before.attempt == place.attempt) &&
                            comes_before(before, mask.optimizer, place, candidate.optimizer);
    if (is_of_step) return mask;
  }
  return candidate;
}

void FirstNonFinite::keep_loss(const Scalar& scalar) {
  RowKey key;
  key.window = scalar.window;
  key.seq = scalar.seq;
  keep({clock_, scalar.window, key, std::string(kLogged), "", Clock::now()},
       [&] { return scalar.name; });
}

void FirstNonFinite::keep(Candidate here, const std::function<std::string()>& text) {
  const auto known =
      std::find_if(candidates_.begin(), candidates_.end(), [&](const Candidate& one) {
        return one.optimizer == here.optimizer && one.window == here.window &&
               is_gradient(one.kind) == is_gradient(here.kind);
      });
  const BadPlace place = place_of(here);
  if (known == candidates_.end()) {
    if (candidates_.size() >= kMostCandidates || !comes_before_told(place, here.optimizer)) return;
    here.text = text();
    candidates_.push_back(std::move(here));
  } else if (place < place_of(*known)) {
    here.text = text();
    here.seen = known->seen;
    *known = std::move(here);
  }
}

Outcome FirstNonFinite::outcome_of(std::int32_t optimizer, std::int64_t window) const {
  if (const std::optional<Outcome> known = timeline_.recorded(optimizer, window)) return *known;
  Outcome guess{optimizer, window};
  guess.step = step_of_(optimizer, window);
  if (guess.step < 0) guess.step = kUnknownStep;
  return guess;
}

BadPlace FirstNonFinite::place_of(const Candidate& candidate) const {
  return bad_place(candidate.kind, candidate.key.accum, candidate.key.seq,
                   outcome_of(candidate.optimizer, candidate.window));
}

bool FirstNonFinite::is_settled(const Candidate& candidate) const {
  const auto index = static_cast<std::size_t>(candidate.optimizer);
  return newest_[index].window > candidate.window &&
         timeline_.recorded(candidate.optimizer, candidate.window) &&
         numbers_.are_complete_to(newest_[index].begun_in);
}

// A loss that is not finite in a window whose parameter gradients all are: the step did not use it.
bool FirstNonFinite::is_passed(const Candidate& candidate) const {
  if (candidate.kind != kLogged) return false;
  std::int64_t rows = 0, bad = 0;
  for (const Count& one : counts_) {
    if (one.window != candidate.window || one.optimizer != clock_ ||
        !is_parameter_gradient(one.kind)) {
      continue;
    }
    rows += one.seen.rows;
    bad += one.seen.bad;
  }
  return rows > 0 && bad == 0;
}

AroundBad FirstNonFinite::around(const Candidate& candidate, std::int64_t step) const {
  AroundBad around;
  for (const Count& one : counts_) {
    if (one.window != candidate.window || one.optimizer != candidate.optimizer) continue;
    if (one.kind == kind::kActv) around.activations += one.seen.rows;
    if (one.kind == kind::kGradUnreduced) around.local.add(one.seen);
    if (one.kind == kind::kActvGrad) around.passed.add(one.seen);
    if (one.kind != candidate.kind || one.accum != candidate.key.accum) continue;
    around.gradients = one.seen;
  }
  for (const Loss& loss : losses_) {
    if (loss.value && outcome_of(clock_, loss.window).step == step) {
      add_loss(around.loss, *loss.value);
    }
  }
  if (setting_) {
    const std::int64_t since = outcome_of(setting_->optimizer, setting_->window).step;
    if (since <= step) around.setting = setting_text(setting_->value, setting_->group, since);
  }
  return around;
}

bool FirstNonFinite::comes_before_told(const BadPlace& place, std::int32_t optimizer) const {
  return !told_ || comes_before(place, optimizer, *told_, told_optimizer_);
}

void FirstNonFinite::tell(const Candidate& candidate, const BadPlace& place) {
  const Origin origin = origin_of(candidate.kind, around(candidate, place.step));
  std::string text = "rank " + std::to_string(rank_) + ": first non-finite value";
  if (told_)
    text += told_->is_routine && !place.is_routine ? " outside skipped steps" : ", before that";
  text += ": ";
  if (origin.place.empty()) {
    text += candidate.text;
  } else {
    text += origin.place + " (" + origin.why;
    if (candidate.kind != kLogged) text += "; first row " + candidate.text;
    text += origin.module.empty() ? ")" : "; module: " + origin.module + ")";
  }
  if (place.step != kUnknownStep) text += ", step " + std::to_string(place.step);
  if (place.is_routine) text += ", which was skipped";
  log_line(text);
}

void FirstNonFinite::catch_up(bool last, Clock::time_point now) noexcept {
  try {
    while (!candidates_.empty()) {
      const auto first = std::min_element(
          candidates_.begin(), candidates_.end(), [this](const Candidate& a, const Candidate& b) {
            return comes_before(place_of(a), a.optimizer, place_of(b), b.optimizer);
          });
      const Candidate begun = beginning_of(*first);
      const BadPlace place = place_of(begun);
      if (comes_before_told(place, begun.optimizer)) {
        if (!last && !is_settled(*first) && now - first->seen < kPatience) return;
        if (!is_passed(*first)) {
          tell(begun, place);
          told_ = place;
          told_optimizer_ = begun.optimizer;
          told_window_ = begun.window;
        }
      }
      candidates_.erase(first);
    }
  } catch (...) {  // out of memory: the rows are in the data
  }
}

}  // namespace trainmon
