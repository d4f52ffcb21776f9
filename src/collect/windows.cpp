// Windows advance when an attempt ends; outcomes leave in window order, late ones included.
#include "collect/windows.h"

#include <algorithm>
#include <new>

namespace trainmon {

bool Schedule::takes(std::int64_t step) const {
  return rank_selected && step >= start && (!stop || step < *stop) && (step - start) % every == 0 &&
         keep.takes((step - start) / every);
}

Windows::Windows(Schedule schedule, Emit emit) : emit_(std::move(emit)), schedule_(schedule) {}

Windows::Track* Windows::track(int optimizer) const {
  if (optimizer < 0 || optimizer >= count_.load(std::memory_order_acquire)) return nullptr;
  return tracks_[static_cast<std::size_t>(optimizer)].get();
}

void Windows::set_schedule(const Schedule& schedule) {
  const std::lock_guard lock(mutex_);
  schedule_ = schedule;
  refresh_all();
}

void Windows::set_keep(const Keep& keep) {
  const std::lock_guard lock(mutex_);
  schedule_.keep = keep;
  refresh_all();
}

void Windows::refresh_all() {
  for (int i = 0; i < count_.load(std::memory_order_relaxed); ++i) {
    refresh(*tracks_[static_cast<std::size_t>(i)]);
  }
}

int Windows::add_optimizer(std::int64_t start_step) {
  const std::lock_guard lock(mutex_);
  const int index = count_.load(std::memory_order_relaxed);
  if (index >= kMaxOptimizers) return kMaxOptimizers - 1;
  auto fresh = std::make_unique<Track>();
  fresh->start_step = fresh->next_step = start_step;
  refresh(*fresh);
  tracks_[static_cast<std::size_t>(index)] = std::move(fresh);
  count_.store(index + 1, std::memory_order_release);
  return index;
}

void Windows::set_start_step(int optimizer, std::int64_t step) {
  Track* found = track(optimizer);
  if (found == nullptr) return;
  const std::lock_guard lock(mutex_);
  if (found->settled) return;
  found->start_step = found->next_step = step;
  refresh(*found);
}

std::vector<std::int64_t> Windows::start_steps() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::int64_t> steps;
  for (int i = 0; i < count_.load(std::memory_order_relaxed); ++i) {
    steps.push_back(tracks_[static_cast<std::size_t>(i)]->start_step);
  }
  return steps;
}

std::int64_t Windows::window(int optimizer) const {
  const Track* found = track(optimizer);
  return found == nullptr ? 0 : found->window.load(std::memory_order_relaxed);
}

std::int64_t Windows::step(int optimizer) const {
  const Track* found = track(optimizer);
  return found == nullptr ? 0 : found->step.load(std::memory_order_relaxed);
}

std::int64_t Windows::step_of(int optimizer, std::int64_t window) const {
  const Track* found = track(optimizer);
  if (found == nullptr) return -1;
  const std::lock_guard lock(mutex_);
  if (window == found->window.load(std::memory_order_relaxed)) return found->step.load();
  for (const auto& [closed, step] : found->recent) {
    if (closed == window) return step;
  }
  return -1;
}

bool Windows::recording(int optimizer) const {
  const Track* found = track(optimizer);
  return found != nullptr && found->recording.load(std::memory_order_relaxed);
}

void Windows::note_non_finite(int optimizer, std::int64_t window) {
  if (Track* found = track(optimizer)) found->non_finite.store(window, std::memory_order_relaxed);
}

bool Windows::saw_non_finite(int optimizer) const {
  const Track* found = track(optimizer);
  return found != nullptr && found->non_finite.load(std::memory_order_relaxed) ==
                                 found->window.load(std::memory_order_relaxed);
}

std::int32_t Windows::on_backward(int optimizer, std::int64_t task) {
  Track* found = track(optimizer);
  if (found == nullptr) return 0;
  if (found->task.load(std::memory_order_acquire) != task) {
    const std::lock_guard lock(mutex_);
    if (found->task.load(std::memory_order_relaxed) != task) {
      found->backwards.fetch_add(1, std::memory_order_relaxed);
      found->task.store(task, std::memory_order_release);
    }
  }
  return found->backwards.load(std::memory_order_relaxed) - 1;
}

std::int32_t Windows::accum(int optimizer) const {
  return std::max(next_accum(optimizer) - 1, 0);
}

std::int32_t Windows::next_accum(int optimizer) const {
  const Track* found = track(optimizer);
  return found == nullptr ? 0 : found->backwards.load(std::memory_order_relaxed);
}

void Windows::begin_attempt(int optimizer) {
  Track* found = track(optimizer);
  if (found == nullptr) return;
  const std::lock_guard lock(mutex_);
  // The last attempt never ended: its step raised.
  if (found->attempting) close(optimizer, *found, Fate::unknown, 1.0);
  found->attempting = true;
}

void Windows::end_attempt(int optimizer, std::optional<Fate> fate, double loss_scale) {
  Track* found = track(optimizer);
  if (found == nullptr) return;
  const std::lock_guard lock(mutex_);
  close(optimizer, *found, fate, loss_scale);
}

void Windows::abandon(int optimizer, Fate fate, double loss_scale) {
  end_attempt(optimizer, fate, loss_scale);
}

void Windows::decide(int optimizer, std::int64_t window, Fate fate, double loss_scale) {
  Track* found = track(optimizer);
  if (found == nullptr) return;
  const std::lock_guard lock(mutex_);
  for (Closed& closed : found->undecided) {
    if (closed.window == window && !closed.fate) {
      closed.fate = fate;
      closed.loss_scale = loss_scale;
    }
  }
  settle(optimizer, *found);
}

void Windows::close(int optimizer, Track& track, std::optional<Fate> fate, double loss_scale) {
  const std::int64_t window = track.window.load(std::memory_order_relaxed);
  try {
    track.recent.emplace_back(window, track.step.load(std::memory_order_relaxed));
    if (track.recent.size() > kRecent) track.recent.pop_front();
  } catch (const std::bad_alloc&) {  // alerts of this window come without their step
  }
  const std::int32_t backwards = track.backwards.load(std::memory_order_relaxed);
  const Closed closed{window, fate, loss_scale, backwards};
  if (fate && track.undecided.empty()) {
    conclude(optimizer, track, closed);
  } else {
    track.undecided.push_back(closed);
  }
  track.attempting = false;
  track.window.store(window + 1, std::memory_order_relaxed);
  track.backwards.store(0, std::memory_order_relaxed);
  track.task.store(-1, std::memory_order_release);
  settle(optimizer, track);
}

void Windows::settle(int optimizer, Track& track) {
  while (!track.undecided.empty() && track.undecided.front().fate) {
    conclude(optimizer, track, track.undecided.front());
    track.undecided.pop_front();
  }
  refresh(track);
}

void Windows::conclude(int optimizer, Track& track, const Closed& closed) {
  track.settled = true;
  try {
    emit_({optimizer, closed.window, track.next_step, track.next_attempt, *closed.fate,
           closed.loss_scale, closed.backwards});
  } catch (const std::bad_alloc&) {  // then readers give the window the step that follows
  }
  if (*closed.fate == Fate::taken) {
    ++track.next_step;
    track.next_attempt = 0;
  } else {
    ++track.next_attempt;
  }
}

// Windows still undecided are taken to have stepped: nearly all of them did.
void Windows::refresh(Track& track) {
  std::int64_t step = track.next_step;
  for (const Closed& closed : track.undecided) {
    if (!closed.fate || *closed.fate == Fate::taken) ++step;
  }
  track.step.store(step, std::memory_order_relaxed);
  track.recording.store(schedule_.takes(step), std::memory_order_relaxed);
}

}  // namespace trainmon
