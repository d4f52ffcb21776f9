// Says, while the run goes on, what went wrong first on this rank: as `trainmon first-bad` will.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "model/batch_numbers.h"
#include "model/first_bad.h"
#include "model/timeline.h"
#include "trainmon/rule.h"

namespace trainmon {

// Rows come in the order of writing. So a line waits until the next window has begun and all
// batches before that are there, or for kPatience. What comes later and belongs before what was
// said gets a line of its own. Makes no alerts. For the writer thread.
class FirstNonFinite final : public Rule {
 public:
  using Clock = std::chrono::steady_clock;
  // `step_of` gives the step of an optimizer's window whose outcome is not known; `clock` is the
  // optimizer that scalars follow.
  using StepOf = std::function<std::int64_t(std::int32_t optimizer, std::int64_t window)>;
  FirstNonFinite(int rank, int clock, StepOf step_of);

  std::string_view name() const override { return "first_non_finite"; }
  void look(const RecordBatch& batch, const SeriesTable& series,
            std::vector<Alert>& alerts) override;
  // Says what need not be waited for any longer; with `last`, everything. Never throws.
  void catch_up(bool last, Clock::time_point now = Clock::now()) noexcept;

 private:
  // The first bad row (or logged loss) of one window, of gradients and of the rest apart. What
  // becomes of the window decides which of them counts.
  struct Candidate {
    std::int32_t optimizer = 0;
    std::int64_t window = 0;
    RowKey key;
    std::string kind;
    std::string text;  // "grad_reduced fc.weight: 3 NaN of 12 elements"
    Clock::time_point seen;
  };
  struct Count {
    std::int32_t optimizer = 0;
    std::int64_t window = 0;
    std::int32_t accum = 0;
    std::string_view kind;  // of a series, which lives as long as the table
    BadCount seen = {};
  };
  struct Loss {
    std::int64_t window = 0;
    std::optional<double> value;
  };

  struct Setting {
    std::int32_t optimizer = 0;
    std::int64_t window = 0;
    std::int32_t group = 0;
    DeclaredValue value;
  };
  struct Newest {
    std::int64_t window = -1;
    std::uint64_t begun_in = 0;  // the number of its first batch
  };

  void forget();
  void note_window(std::int32_t optimizer, std::int64_t window, std::uint64_t number);
  void count(const Row& row, const Series& series);
  void keep(const Row& row, const Series& series);
  void keep_loss(const Scalar& scalar);
  void keep(Candidate here, const std::function<std::string()>& text);
  void keep_mask(const Row& row, const Series& series);
  // The candidate, or the first -Inf of an activation from which it came.
  Candidate beginning_of(const Candidate& candidate) const;
  Outcome outcome_of(std::int32_t optimizer, std::int64_t window) const;
  BadPlace place_of(const Candidate& candidate) const;
  bool is_settled(const Candidate& candidate) const;
  bool is_passed(const Candidate& candidate) const;
  AroundBad around(const Candidate& candidate, std::int64_t step) const;
  bool comes_before_told(const BadPlace& place, std::int32_t optimizer) const;
  void tell(const Candidate& candidate, const BadPlace& place);

  const int rank_;
  const int clock_;
  const StepOf step_of_;
  Timeline timeline_;
  std::vector<Candidate> candidates_;
  std::vector<Candidate> masks_;                      // flag::kFirstMasked, of the newest windows
  std::vector<Count> counts_;                         // of the newest windows
  std::vector<Loss> losses_;                          // of the newest windows
  std::set<std::string, std::less<>> finite_losses_;  // names of those that were once
  std::optional<Setting> setting_;                    // the first that is NaN
  std::vector<Newest> newest_;                        // by optimizer
  BatchNumbers numbers_;
  std::optional<BadPlace> told_;
  std::int32_t told_optimizer_ = 0;  // of told_
  std::int64_t told_window_ = 0;
};

}  // namespace trainmon
