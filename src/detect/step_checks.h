// The checks that a rank can make of itself while it trains: an alert at the step that fails one.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "detect/engine.h"
#include "detect/findings.h"
#include "detect/parameters.h"
#include "model/batch_numbers.h"
#include "trainmon/rule.h"

namespace trainmon::detect {

// Checks that compare ranks are left to `trainmon diagnose`. A window is checked when its outcome
// is known, the next one has begun and all batches before that are there. The last one is checked
// when the monitor stops. Memory is that of kMostOpen windows: what comes later than these is not
// checked.
class StepChecks final : public Rule {
 public:
  using KnowsFormula = std::function<bool(std::int32_t optimizer)>;
  // `knows` says, on the thread of look(), whether an optimizer is of a class whose formula checks
  // have. Rows of its steps say so, too.
  // `is_alone`: there are no other ranks.
  explicit StepChecks(
      std::int32_t rank, KnowsFormula knows = [](std::int32_t) { return false; },
      bool is_alone = true)
      : rank_(rank), knows_formula_(std::move(knows)), is_alone_(is_alone) {}

  std::string_view name() const override { return "step_checks"; }
  // An alert for each check that certainly failed, at first and whenever the number of steps in
  // which it did has doubled. Its `rule` is the name of the check.
  void look(const RecordBatch& batch, const SeriesTable& series,
            std::vector<Alert>& alerts) override;

 private:
  static constexpr std::size_t kMostOpen = 8;  // windows of an optimizer

  struct Measured {
    Row row;
    std::optional<RowCheck> check;
  };
  struct Open {
    std::vector<Measured> rows;
    std::vector<Declared> declared;
    std::optional<Outcome> outcome;
    std::optional<double> other_optimizer;  // as that scalar
    std::uint64_t begun_in = 0;             // the number of its first batch
  };
  // Of one optimizer.
  struct Clock {
    Clock(const std::vector<Tensor>& tensors, std::int32_t rank) : engine(tensors, {rank}) {}
    Engine engine;
    std::map<std::int64_t, Open> open;  // by window
    std::int64_t next = 0;              // windows before this one were checked
    std::int64_t lost_until = -1;       // something of the windows until this one was lost
  };

  Clock& clock_of(std::int32_t optimizer);
  // nullptr where the window was checked already.
  Open* open(std::int32_t optimizer, std::int64_t window, std::uint64_t number);
  void take(const RecordBatch& batch, const SeriesTable& series);
  void check(Clock& clock, Open& window, const SeriesTable& series, std::vector<Alert>& alerts);
  // Where nothing says how ranks go together, a program may average weights over them.
  bool may_be_averaged(const Finding& finding, const std::vector<Measured>& rows,
                       const SeriesTable& series) const;
  void alert(const Finding& finding, const std::vector<Measured>& rows, const SeriesTable& series,
             std::vector<Alert>& alerts);

  const std::int32_t rank_;
  const KnowsFormula knows_formula_;
  const bool is_alone_;
  Parameters parameters_;
  BatchNumbers numbers_;
  std::map<std::int32_t, Clock> clocks_;
  struct Seen {
    RowKey first;
    std::int64_t steps = 0;
  };
  std::array<Seen, kChecks> seen_;
};

}  // namespace trainmon::detect
