// Two looks: one for the first bad row of each restart, one at what else the first of all saw.

#include "trainmon/first_bad.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include "answers/diagnose.h"
#include "answers/passed_losses.h"
#include "answers/setting_changes.h"
#include "base/parallel.h"
#include "model/kinds.h"
#include "read/bad_place.h"
#include "read/merge_rows.h"
#include "read/run_stream.h"

namespace trainmon {

namespace {

struct BadRow {
  ReadRow row;
  Series series;
  BadPlace place;
};

bool is_of_forward(const Series& series) {
  return series.kind == kind::kInput || series.kind == kind::kActv ||
         series.kind == kind::kActvRecomputed;
}

// The first bad row of each restart, rank and optimizer.
class FirstRows {
 public:
  // `leaves_out_activations`: and inputs, and gradients of both.
  explicit FirstRows(const RunRows& run, bool leaves_out_activations = false)
      : run_(&run), leaves_out_activations_(leaves_out_activations) {}

  void add(const ReadRow& row) {
    if (!is_bad(row)) return;
    const Series& series = run_->series[row.series];
    if (leaves_out_activations_ && (is_of_forward(series) || series.kind == kind::kActvGrad)) {
      return;
    }
    keep(row, series, place_of(*run_, row, series));
  }
  void add(const FirstRows& other) {
    for (const auto& [where, bad] : other.first_) keep(bad.row, bad.series, bad.place);
  }
  // A logged loss counts as a row of the kind kLogged.
  void add_losses(const PassedLosses& passed) {
    Series series;
    series.kind = kLogged;
    series.dtype = DType::float64;
    for (const ReadScalar& scalar : run_->scalars) {
      if (!is_loss(scalar.name) || std::isfinite(scalar.value)) continue;
      if (passed.is_passed(scalar)) continue;
      ReadRow row;
      row.restart = scalar.restart;
      row.rank = scalar.rank;
      row.step = scalar.step;
      row.seq = scalar.seq;
      row.state.count = 1;
      (std::isnan(scalar.value) ? row.state.nans
       : scalar.value > 0.0     ? row.state.pos_infs
                                : row.state.neg_infs) = 1;
      series.name = scalar.name;
      keep(row, series, place_of(*run_, row, series));
    }
  }
  std::map<std::int32_t, BadRow> of_restarts() const {
    std::map<std::pair<std::int32_t, std::int32_t>, const BadRow*> of_ranks;
    for (const auto& [where, bad] : first_) {
      const BadRow*& first = of_ranks[{bad.row.restart, bad.row.rank}];
      if (first == nullptr ||
          comes_before(bad.place, bad.series.optimizer, first->place, first->series.optimizer)) {
        first = &bad;
      }
    }
    std::map<std::int32_t, BadRow> found;
    for (const auto& [where, bad] : of_ranks) {
      const auto [known, is_new] = found.try_emplace(where.first, *bad);
      if (!is_new && bad->place < known->second.place) known->second = *bad;
    }
    return found;
  }

 private:
  void keep(const ReadRow& row, const Series& series, const BadPlace& place) {
    const std::tuple where(row.restart, row.rank, series.optimizer);
    const auto known = first_.find(where);
    if (known == first_.end() || place < known->second.place) {
      first_.insert_or_assign(where, BadRow{row, series, place});
    }
  }

  const RunRows* run_;
  bool leaves_out_activations_;
  // By restart, rank and optimizer, of whose windows the order is known.
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, BadRow> first_;
};

// What else was seen where the first bad row is.
class Around {
 public:
  Around(const RunRows& run, const BadRow& bad)
      : run_(run), first_(bad.row), of_first_(bad.series), is_logged_(bad.series.kind == kLogged) {
    for (const ReadScalar& scalar : run.scalars) {
      if (scalar.restart != first_.restart || scalar.step != first_.step) continue;
      if (!is_loss(scalar.name)) continue;
      const bool is_of_attempt =
          is_logged_ || scalar.attempt < 0 || scalar.attempt == first_.attempt;
      if (is_of_attempt && (scalar.rank == first_.rank || first_.rank < 0)) {
        add_loss(around_.loss, scalar.value);
      }
      if (is_logged_ && scalar.name == of_first_.name && !std::isfinite(scalar.value)) {
        ranks_.insert(scalar.rank);
      }
    }
  }

  void add_settings(const std::vector<ReadDeclared>& declared) {
    const ReadDeclared* bad = nullptr;
    for (const ReadDeclared& one : declared) {
      if (one.restart != first_.restart || (one.rank != first_.rank && first_.rank >= 0)) continue;
      if (one.step > first_.step || !is_bad_setting(one.value)) continue;
      if (bad == nullptr || one.step < bad->step) bad = &one;
    }
    if (bad != nullptr) around_.setting = setting_text(bad->value, bad->group, bad->step);
  }

  void add(const ReadRow& row) {
    if (row.restart != first_.restart || row.step != first_.step) return;
    const Series& series = run_.series[row.series];
    const bool is_such = is_bad(row) || (row.flags & first_.flags & flag::kFirstMasked) != 0;
    if (is_such && place(row, series) == place(first_, of_first_)) ranks_.insert(row.rank);
    if (row.rank != first_.rank) return;
    if (series.optimizer == of_first_.optimizer) {
      last_try_ = std::max(last_try_, row.attempt);
      was_taken_ = was_taken_ || row.fate == Fate::taken;
    }
    if (row.attempt != first_.attempt && !is_logged_) return;
    if (series.optimizer == of_first_.optimizer && series.kind == of_first_.kind &&
        row.accum == first_.accum) {
      around_.gradients.add(is_bad(row), row.seq, series.name);
    }
    around_.activations += series.kind == kind::kActv ? 1 : 0;
    if (series.kind == kind::kGradUnreduced) {
      around_.local.add(is_bad(row), row.seq, series.name);
    }
    if (series.kind == kind::kActvGrad) around_.passed.add(is_bad(row), row.seq, series.name);
    // Steps of another optimizer have other numbers.
    const bool is_behind = moment_of(series.kind) > 1 && !is_of_forward(series) &&
                           series.kind != kind::kActvGrad &&
                           series.optimizer == of_first_.optimizer;
    if (is_behind) around_.behind.add(is_bad(row), row.seq, series.name);
  }
  const AroundBad& around() const { return around_; }
  std::vector<int> ranks() const { return {ranks_.begin(), ranks_.end()}; }
  // Of a try that was skipped: whether a later one took the step. A record may end in between, but
  // a training that skips try after try is at fault.
  bool goes_on() const {
    constexpr std::int32_t kMostTries = 2;
    return was_taken_ || last_try_ - first_.attempt < kMostTries;
  }

 private:
  static std::tuple<std::int32_t, std::int32_t, std::int32_t, std::string_view, std::int32_t,
                    std::string_view, std::string_view>
  place(const ReadRow& row, const Series& series) {
    return {row.attempt,  row.accum,   row.call,      series.kind,
            series.chunk, series.name, series.element};
  }

  const RunRows& run_;
  const ReadRow first_;
  const Series of_first_;
  const bool is_logged_;
  AroundBad around_;
  std::set<int> ranks_;
  std::int32_t last_try_ = 0;  // of the step, by the same optimizer
  bool was_taken_ = false;
};

using Look = std::function<void(const ReadRow&)>;

// `look_again` gives the rows of a step once more, of one restart or (-1) of all. `is_whole`: no
// tensor was left out by name, so that numbers of gradients mean something.
using LookAgain = std::function<void(std::int64_t step, std::int32_t restart, const Look&)>;

// -Inf of an activation that had none before is no fault by itself. What is not finite later in the
// step began there.
BadRow beginning_of(const RunRows& run, const BadRow& first, const LookAgain& look_again) {
  BadRow found = first;
  if (first.place.is_routine) return found;
  const bool is_logged = first.series.kind == kLogged;
  look_again(first.row.step, first.row.restart, [&](const ReadRow& row) {
    if ((row.flags & flag::kFirstMasked) == 0 || row.rank != first.row.rank) return;
    if (row.restart != first.row.restart || row.step != first.row.step) return;
    if (row.attempt != first.row.attempt && !is_logged) return;
    const Series& series = run.series[row.series];
    const BadPlace place = place_of(run, row, series);
    if (comes_before(place, series.optimizer, found.place, found.series.optimizer)) {
      found = {row, series, place};
    }
  });
  return found;
}

std::optional<FirstBad> finish(const RunRows& run, const FirstRows& found, bool is_whole,
                               const LookAgain& look_again) {
  const std::map<std::int32_t, BadRow> of_restarts = found.of_restarts();
  if (of_restarts.empty()) return std::nullopt;
  const auto earliest = std::min_element(
      of_restarts.begin(), of_restarts.end(),
      [](const auto& a, const auto& b) { return a.second.place < b.second.place; });
  const BadRow first = beginning_of(run, earliest->second, look_again);
  FirstBad bad{first.row, first.series, {}, "", "", "", {}, false, false, false, {}};
  bad.changes = setting_changes(run.declared, bad.row.restart, bad.row.rank, bad.row.step);
  Around seen(run, first);
  seen.add_settings(run.declared);
  look_again(bad.row.step, bad.row.restart, [&](const ReadRow& row) { seen.add(row); });
  bad.ranks = seen.ranks();
  bad.was_left_out = first.place.is_routine && seen.goes_on();
  const AroundBad& around = seen.around();
  // A gradient of an activation may be as bad as that, where none reaches a weight.
  const BadCount& behind = around.behind.rows > 0 ? around.behind : around.passed;
  const bool is_passed_on = is_of_forward(bad.series) || bad.series.kind == kind::kActvGrad;
  bad.is_filled_in = is_passed_on && behind.rows > 0 && behind.bad == 0 &&
                     std::isfinite(around.loss.value_or(0.0));
  bad.follows_gap = bad.row.step > 0;
  look_again(bad.row.step - 1, -1, [&](const ReadRow& row) {
    if (row.rank == bad.row.rank && row.step == bad.row.step - 1) bad.follows_gap = false;
  });
  if (is_whole) {
    Origin origin = origin_of(bad.series.kind, around);
    bad.came_from = std::move(origin.place);
    bad.why = std::move(origin.why);
    bad.module = std::move(origin.module);
  }
  for (const auto& [restart, one] : of_restarts) {
    bad.restarts.push_back({one.row, one.series});
  }
  return bad;
}

// What is found of a run, and of it what is no activation and no input.
struct FoundRows {
  explicit FoundRows(const RunRows& run) : all(run), behind(run, true) {}

  void add(const ReadRow& row) {
    all.add(row);
    behind.add(row);
  }
  void add(const FoundRows& other) {
    all.add(other.all);
    behind.add(other.behind);
  }

  FirstRows all, behind;
};

// A model that fills something in may do so in each step. What counts is the step in which more
// than that is bad.
void go_on(const RunRows& run, const FirstRows& behind, bool is_whole, const LookAgain& look_again,
           FirstBadOfRun& result) {
  const std::map<std::int32_t, BadRow> of_restarts = behind.of_restarts();
  if (of_restarts.empty()) return;
  const auto& [restart, first] =
      *std::ranges::min_element(of_restarts, {}, [](const auto& one) { return one.second.place; });
  FirstRows of_step(run);
  of_step.add(behind);
  look_again(first.row.step, restart, [&](const ReadRow& row) {
    if (row.step == first.row.step && row.restart == restart) of_step.add(row);
  });
  result.filled_in = std::move(result.found);
  result.found = finish(run, of_step, is_whole, look_again);
}

// The same, and the losses that are passed over.
void find(const RunRows& run, FoundRows& found, bool is_whole, const LookAgain& look_again,
          FirstBadOfRun& result) {
  if (is_whole) {
    PassedLosses passed(run);
    for (const std::int64_t step : passed.steps()) {
      look_again(step, -1, [&](const ReadRow& row) { passed.look(row, run.series[row.series]); });
    }
    found.all.add_losses(passed);
    found.behind.add_losses(passed);
    result.passed_losses = passed.noticed(run);
  }
  result.found = finish(run, found.all, is_whole, look_again);
  if (result.found && result.found->is_filled_in) {
    go_on(run, found.behind, is_whole, look_again, result);
  }
}

void find(const RunRows& run, bool is_whole, FirstBadOfRun& result) {
  FoundRows found(run);
  for (const ReadRow& row : run.rows) found.add(row);
  const auto look_again = [&](std::int64_t, std::int32_t, const Look& look) {
    for (const ReadRow& row : run.rows) look(row);
  };
  find(run, found, is_whole, look_again, result);
}

}  // namespace

std::optional<FirstBad> first_bad(const RunRows& rows) {
  FirstBadOfRun result;
  find(rows, true, result);
  return std::move(result.found);
}

FirstBadOfRun first_bad(const std::filesystem::path& run, ReadOptions options) {
  options.all_restarts = true;
  const bool is_whole = options.kinds.empty() && options.include.empty() && options.exclude.empty();
  FirstBadOfRun result;
  if (options.merged) {  // which takes all rows of all ranks at once
    result.run = read_run(run, options);
    find(result.run, is_whole, result);
    result.rows = static_cast<std::int64_t>(result.run.rows.size());
    result.partial = partial_rows(result.run);
    result.run.rows = std::vector<ReadRow>();
    result.run.payloads = std::vector<ReadPayload>();
    return result;
  }
  return first_bad(OpenedRun(run, options), options);
}

FirstBadOfRun first_bad(const OpenedRun& opened, ReadOptions options) {
  options.all_restarts = true;
  const bool is_whole = options.kinds.empty() && options.include.empty() && options.exclude.empty();
  FirstBadOfRun result;
  RunStream stream(opened, options);
  FoundRows found(stream.facts());
  std::vector<Damage> said_before;
  std::mutex mutex;
  const auto& pieces = stream.pieces();
  std::vector<std::vector<Damage>> damage(pieces.size());
  for_each_parallel(pieces.size(), useful_threads(options.threads), [&](std::size_t i) {
    FoundRows here(stream.facts());
    RunStream::Take take{[&](const ReadRow& row) { here.add(row); }, {}};
    take.only_bad_batches = true;
    const std::int64_t rows = stream.read(pieces[i], take, damage[i]);
    const std::lock_guard lock(mutex);
    result.rows += rows;
    found.add(here);
  });
  const auto look_again = [&](std::int64_t step, std::int32_t restart, const Look& look) {
    RunStream::Take take{look, {}};
    take.step = step;
    for (const RunStream::Piece& piece : pieces) {
      if (restart < 0 || piece.restart == restart) stream.read(piece, take, said_before);
    }
  };
  find(stream.facts(), found, is_whole, look_again, result);
  result.run = stream.take_facts();
  for (const std::vector<Damage>& of_piece : damage) {
    result.run.damage.insert(result.run.damage.end(), of_piece.begin(), of_piece.end());
  }
  return result;
}

}  // namespace trainmon
