// Steps, attempts and windows of every optimizer: what belongs to which step, and what became of
// it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "collect/governor.h"
#include "trainmon/record.h"

namespace trainmon {

// Which steps are recorded: start <= step < stop, (step - start) divisible by every, and of those
// what the governor keeps.
struct Schedule {
  std::int64_t start = 0;
  std::optional<std::int64_t> stop;
  std::int64_t every = 1;
  bool rank_selected = true;
  Keep keep = {};

  bool takes(std::int64_t step) const;
};

// Thread-safe. An outcome is emitted, in window order, as soon as it and all before it are known.
// Calls for an optimizer that was never added do nothing and answer 0 or false.
class Windows {
 public:
  using Emit = std::function<void(const Outcome&)>;

  Windows(Schedule schedule, Emit emit);

  // Of the windows that open from now on, and of those open now, whose rows so far stay.
  void set_schedule(const Schedule& schedule);
  void set_keep(const Keep& keep);  // the same; the rest of the schedule stays

  int add_optimizer(std::int64_t start_step);
  void set_start_step(int optimizer, std::int64_t step);
  std::vector<std::int64_t> start_steps() const;

  std::int64_t window(int optimizer) const;
  std::int64_t step(int optimizer) const;
  // The step of a window still open or among the last ones closed; -1 when it is longer ago.
  std::int64_t step_of(int optimizer, std::int64_t window) const;
  bool recording(int optimizer) const;
  // A row of this window had a NaN or an infinity; true for the open window until it closes.
  void note_non_finite(int optimizer, std::int64_t window);
  bool saw_non_finite(int optimizer) const;

  std::int32_t on_backward(int optimizer, std::int64_t task);
  std::int32_t accum(int optimizer) const;
  std::int32_t next_accum(int optimizer) const;

  void begin_attempt(int optimizer);
  void end_attempt(int optimizer, std::optional<Fate> fate, double loss_scale);
  void abandon(int optimizer, Fate fate, double loss_scale);
  void decide(int optimizer, std::int64_t window, Fate fate, double loss_scale);

 private:
  struct Closed {
    std::int64_t window = 0;
    std::optional<Fate> fate;
    double loss_scale = 1.0;
    std::int32_t backwards = 0;
  };
  struct Track {
    std::atomic<std::int64_t> window{0};
    std::atomic<std::int64_t> step{0};       // of the open window
    std::atomic<std::int32_t> backwards{0};  // begun in the open window
    std::atomic<std::int64_t> task{-1};      // the backward they belong to last
    std::atomic<bool> recording{false};
    std::atomic<std::int64_t> non_finite{-1};  // last window with such a row
    // under mutex_
    std::int64_t start_step = 0;
    std::int64_t next_step = 0;  // of the oldest window without an outcome
    std::int32_t next_attempt = 0;
    bool attempting = false;
    bool settled = false;          // an outcome exists, the start step is fixed
    std::deque<Closed> undecided;  // closed windows without an outcome, oldest first
    std::deque<std::pair<std::int64_t, std::int64_t>> recent;  // (window, step), newest last
  };

  Track* track(int optimizer) const;
  void close(int optimizer, Track& track, std::optional<Fate> fate, double loss_scale);
  void settle(int optimizer, Track& track);
  void conclude(int optimizer, Track& track, const Closed& closed);
  void refresh(Track& track);
  void refresh_all();

  static constexpr int kMaxOptimizers = 256;
  static constexpr std::size_t kRecent = 64;

  const Emit emit_;
  mutable std::mutex mutex_;
  Schedule schedule_;
  std::array<std::unique_ptr<Track>, kMaxOptimizers> tracks_;
  std::atomic<int> count_{0};
};

}  // namespace trainmon
