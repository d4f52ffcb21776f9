// Keeps the cost of monitoring within a share of the step's time, by recording fewer steps.
//
// What a recorded step costs is seen in two ways. Hooks time themselves: that is steady, but
// misses what they cause elsewhere. Such costs are calls by torch, cold caches, and a writer
// thread on a core that training wanted. And recorded steps are compared with the bare ones
// beside them: that misses nothing, but steps differ from each other by per cents without us. So
//
//   cost of a recorded step = factor * (own seconds of a recorded step - of a bare one)
//   share = (own seconds of a bare step + kept * cost) / seconds of a step without all that
//
// The factor is the mean of a first guess and of what the comparisons gave, each weighted by the
// inverse of its variance. So the comparisons decide on a quiet machine, the clock in the hooks
// on a noisy one. All values are medians over the last steps of a sort, which follow a drift and
// take no notice of single slow steps.
//
// Kept are `part` of every `of` steps, spread evenly (Keep::takes). Fractions lie at most 1/8
// apart (8 to 15 sixteenths, times a power of two). The largest one within the budget is chosen,
// which uses 8/9 of it or more. It stays while the share is from 0.85 to 1.1 of the budget. So
// where the estimate is right to 10 %, the share is within 20 % of the budget, or all steps are
// recorded.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace trainmon {

// `part` of every `of` steps; `of` is a power of two.
struct Keep {
  std::int64_t part = 1;
  std::int64_t of = 1;

  // Whether the step is one of them: those whose number, written in binary and backwards, is
  // small. So they are spread evenly, and the steps of a smaller fraction are also steps of every
  // larger one. Ranks that chose differently share the steps of the one that records least.
  bool takes(std::int64_t step) const;
  double share() const { return static_cast<double>(part) / static_cast<double>(of); }
  bool operator==(const Keep&) const = default;
};

struct StepTime {
  double seconds = 0.0;   // from the end of the step before to the end of this one
  double own = 0.0;       // of them, in hooks of ours
  bool recorded = false;  // whether its rows were recorded
};

// Not thread-safe.
class Governor {
 public:
  // `budget` is a share of the step's time, 0 < budget < 1; the user asked for one step in `every`,
  // and at most those are recorded. With every = 1 recording begins with every second step, so that
  // there are bare steps to compare with.
  Governor(double budget, std::int64_t every);

  // A step has ended: true when another keep() holds from the next one on. Times that are negative
  // or no number are not looked at. The first step is not looked at: it makes buffers and series.
  bool take(const StepTime& step);
  // Something was found (a NaN, an alert): records all that `every` allows for kBurst steps, over
  // budget or not; not again within kBurstPause. True when another keep() holds.
  bool found();

  Keep keep() const { return burst_left_ > 0 ? Keep{} : keep_; }
  bool in_burst() const { return burst_left_ > 0; }
  // Whether there was enough to choose by; before, the next two answer 0.
  bool decided() const { return decided_; }
  double share() const;          // of the step's time with what is kept, as estimated
  double recorded_cost() const;  // of a recorded step, as a share of the step's time
  double factor() const { return factor_; }
  // The smallest fraction is still too much.
  bool is_out_of_reach() const;

  static constexpr std::int64_t kBurst = 8;
  static constexpr std::int64_t kBurstPause = 64;

 private:
  template <std::size_t kRemembered>
  class Recent {
   public:
    void add(double value);
    std::size_t size() const { return count_ < kRemembered ? count_ : kRemembered; }
    double median() const;
    double deviation() const;  // standard deviation, from the median absolute deviation

   private:
    std::array<double, kRemembered> values_{};
    std::size_t count_ = 0;
  };

  void compare(const StepTime& step);
  void estimate();
  double share_of(double kept) const;
  Keep largest_within_budget() const;

  const double budget_;
  const double every_;
  Keep keep_;
  bool decided_ = false;
  std::int64_t steps_ = 0;
  std::int64_t burst_left_ = 0;
  std::int64_t next_burst_ = 0;

  Recent<32> own_recorded_, own_bare_;
  Recent<32> bare_;          // seconds of a step less what ours cost it
  Recent<128> differences_;  // recorded step less the bare ones beside it
  StepTime last_, before_last_;

  double factor_ = 0.0;
  double cost_ = 0.0;      // seconds of a recorded step beyond a bare one
  double standing_ = 0.0;  // own seconds of a bare step
  double step_ = 0.0;      // seconds of a step without us
};

}  // namespace trainmon
