// Rows come rank by rank; the engine wants them step by step. So the rank that is furthest behind
// is read on, and a step is complete when no rank can have more of it.
#include "answers/diagnose.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "answers/unchecked.h"
#include "base/text.h"
#include "detect/engine.h"
#include "detect/parameters.h"
#include "model/first_bad.h"
#include "model/kinds.h"
#include "read/run_stream.h"
#include "trainmon/first_bad.h"

namespace trainmon {
namespace {

using detect::Check;
using detect::Finding;
using detect::Quantity;

// Gives the engine what the groups say as steps go by.
class Told {
 public:
  // `is_whole`: no row was left out, so that norms of all gradients can be told.
  Told(const RunRows& run, bool is_whole, detect::Engine& engine) : run_(run), engine_(engine) {
    for (const ReadScalar& one : run.scalars) {
      if (one.name == detect::kEditScalar) engine.announce_edit(one.restart, one.rank, one.seq);
      if (is_whole && detect::is_gradient_norm(one.name)) norms_[one.step].push_back(&one);
    }
    for (const ReadGap& one : run.gaps) engine.announce_loss(one.restart, one.rank);
  }
  void tell(std::int64_t step) {
    for (; next_ < run_.declared.size() && run_.declared[next_].step <= step; ++next_) {
      const ReadDeclared& one = run_.declared[next_];
      engine_.declare(one.restart, one.rank, one.optimizer, one.group, one.value.name,
                      detect::number_of(one.value));
    }
    const auto logged = norms_.find(step);
    if (logged == norms_.end()) return;
    for (const ReadScalar* one : logged->second) {
      engine_.log_norm(one->restart, one->rank, {one->name, one->value});
    }
  }

 private:
  const RunRows& run_;
  detect::Engine& engine_;
  std::size_t next_ = 0;
  std::map<std::int64_t, std::vector<const ReadScalar*>> norms_;  // by step
};

// The tensors that have a NaN or an infinity where the first of all was found: in one step, on its
// ranks, in what is measured at one time. Which of them was first cannot be told.
class FoundTogether {
 public:
  explicit FoundTogether(const std::optional<FirstBad>& bad) {
    if (!bad) return;
    quantity_ = detect::quantity_of(bad->series.kind);
    // Backward computes unreduced gradients one after another: there the first is known.
    if (quantity_ == static_cast<int>(Quantity::grad_unreduced)) quantity_ = -1;
    restart_ = bad->row.restart;
    step_ = bad->row.step;
    ranks_.insert(bad->ranks.begin(), bad->ranks.end());
  }
  void take(const ReadRow& row, const detect::Observation& one) {
    if (one.is_finite || static_cast<int>(one.quantity) != quantity_) return;
    if (row.restart != restart_ || row.step != step_ || !ranks_.contains(row.rank)) return;
    tensors_.insert(one.tensor);
  }
  const std::set<std::uint32_t>& tensors() const { return tensors_; }

 private:
  int quantity_ = -1;
  std::int32_t restart_ = 0;
  std::int64_t step_ = 0;
  std::set<int> ranks_;
  std::set<std::uint32_t> tensors_;
};

class StepByStep {
 public:
  StepByStep(const RunStream& stream, bool is_whole, const detect::Parameters& parameters,
             detect::Engine& engine, FoundTogether& together)
      : stream_(stream),
        parameters_(parameters),
        engine_(engine),
        together_(together),
        told_(stream.facts(), is_whole, engine) {
    for (std::size_t i = 0; i < stream.pieces().size(); ++i) {
      ranks_[stream.pieces()[i].rank].pieces.push_back(i);
    }
  }

  std::int64_t run(std::vector<Damage>& damage) {
    std::int64_t rows = 0;
    while (Rank* const behind = furthest_behind()) {
      const std::int64_t before = behind->newest;
      rows += read(*behind, damage);
      // Late rows of a device come a few batches after the others of their step: a whole piece is
      // waited for.
      behind->complete = before;
      if (behind->next == behind->pieces.size()) behind->complete = kEnd;
      take_complete();
    }
    take_complete();
    return rows;
  }
  // Tensors of which a row has a check, and of which one has none.
  const std::set<std::uint32_t>& checked() const { return checked_; }
  const std::set<std::uint32_t>& unchecked() const { return unchecked_; }

 private:
  static constexpr std::int64_t kEnd = std::numeric_limits<std::int64_t>::max();
  static constexpr std::int64_t kBegin = std::numeric_limits<std::int64_t>::min();
  struct Rank {
    std::vector<std::size_t> pieces;
    std::size_t next = 0;
    std::int64_t newest = kBegin;    // step that was read
    std::int64_t complete = kBegin;  // steps before this one are whole
    std::int64_t open = kBegin;      // the newest of which it is not known what became of it
  };

  Rank* furthest_behind() {
    Rank* found = nullptr;
    for (auto& [number, rank] : ranks_) {
      if (rank.next == rank.pieces.size()) continue;
      if (found == nullptr || rank.newest < found->newest) found = &rank;
    }
    return found;
  }

  std::int64_t read(Rank& rank, std::vector<Damage>& damage) {
    const auto add = [&](const ReadRow& row, const RowCheck* check) {
      std::optional<detect::Observation> one =
          parameters_.observe(row.series, row.state, row.flags, row.loss_scale, check);
      if (!one) return add_input(rank, row, check);
      one->rank = row.rank;
      one->attempt = row.attempt;
      one->accum = row.accum;
      one->seq = row.seq;
      together_.take(row, *one);
      if (row.fate == Fate::skipped) return;
      (check == nullptr ? unchecked_ : checked_).insert(one->tensor);
      if (detect::StepEvidence* const evidence = open(rank, row)) evidence->add(*one);
    };
    RunStream::Take take;
    take.row = [&](const ReadRow& row) { add(row, nullptr); };
    take.checked = [&](const ReadRow& row, const RowCheck& check) { add(row, &check); };
    return stream_.read(stream_.pieces()[rank.pieces[rank.next++]], take, damage);
  }

  void add_input(Rank& rank, const ReadRow& row, const RowCheck* check) {
    if (row.fate == Fate::skipped) return;
    std::optional<detect::Input> one = parameters_.input(row.series, row.state, check);
    if (!one) return;
    one->rank = row.rank;
    one->accum = row.accum;
    one->call = row.call;
    one->seq = row.seq;
    if (detect::StepEvidence* const evidence = open(rank, row)) evidence->add(std::move(*one));
  }

  // That of the step of a row; nullptr when it comes too late: its step was checked without it, or
  // is of an older start.
  detect::StepEvidence* open(Rank& rank, const ReadRow& row) {
    rank.newest = std::max(rank.newest, row.step);
    if (row.fate == Fate::unknown) rank.open = std::max(rank.open, row.step);
    if (row.step < next_step_) return nullptr;
    const auto [at, is_new] = steps_.try_emplace(row.step, row.restart, row.step);
    detect::StepEvidence& evidence = at->second;
    if (row.restart > evidence.restart) evidence = {row.restart, row.step};
    return row.restart == evidence.restart ? &evidence : nullptr;
  }

  void take_complete() {
    std::int64_t complete = kEnd;
    for (const auto& [number, rank] : ranks_) complete = std::min(complete, rank.complete);
    while (!steps_.empty() && steps_.begin()->first < complete) {
      const std::int64_t step = steps_.begin()->first;
      told_.tell(step);
      if (!is_torn(step)) engine_.take(std::move(steps_.begin()->second));
      steps_.erase(steps_.begin());
      next_step_ = step + 1;
    }
  }

  // Whether a rank was in the middle of this step when its record ended, so far or for good.
  bool is_torn(std::int64_t step) const {
    return std::ranges::any_of(ranks_, [&](const auto& one) {
      return one.second.open == step && one.second.newest == step;
    });
  }

  const RunStream& stream_;
  const detect::Parameters& parameters_;
  detect::Engine& engine_;
  FoundTogether& together_;
  Told told_;
  std::map<int, Rank> ranks_;
  std::set<std::uint32_t> checked_, unchecked_;
  std::map<std::int64_t, detect::StepEvidence> steps_;
  std::int64_t next_step_ = kBegin;
};

detect::Stage stage_of_first(const FirstBad& bad) {
  if (bad.series.kind == kind::kInput) return detect::Stage::input;
  if (bad.came_from.starts_with("the forward")) return detect::Stage::forward;
  return stage_of_kind(bad.series.kind);
}

Finding finding_of(const FirstBad& bad, std::uint32_t tensor,
                   const std::set<std::uint32_t>& together) {
  Finding one;
  one.restart = bad.row.restart;
  one.step = bad.row.step;
  one.check = Check::finite;
  one.stage = stage_of_first(bad);
  for (const int rank : bad.ranks) one.ranks.push_back(rank);
  one.tensors = {tensor};
  if (together.size() > 1) one.tensors.assign(together.begin(), together.end());
  one.value =
      static_cast<double>(bad.row.state.nans + bad.row.state.pos_infs + bad.row.state.neg_infs);
  // A loss scaler makes and drops such gradients as its way of working.
  const bool is_routine = bad.row.fate == Fate::skipped && is_gradient(bad.series.kind);
  one.certain = !is_routine || bad.row.loss_scale == 1.0;
  one.text = bad.came_from.empty()
                 ? bad.series.kind + " has a NaN or an infinity"
                 : "a NaN or an infinity came from " + bad.came_from + ": " + bad.why;
  if (bad.follows_gap) one.text += "; " + gap_text(one.step);
  return one;
}

// Why elements were compared by statistics, of all tensors or of some; empty where they were not.
std::string why_unchecked(const StepByStep& steps, const std::vector<detect::Tensor>& tensors) {
  constexpr std::size_t kNamed = 20;
  if (steps.unchecked().empty()) return "";
  if (steps.checked().empty()) return "not recorded, watch(..., checks=True) does it";
  std::string why = "not recorded of ";
  std::size_t named = 0;
  for (const std::uint32_t tensor : steps.unchecked()) {
    if (named == kNamed) break;
    why += (named++ == 0 ? "" : ", ") + tensors[tensor].name;
  }
  const std::size_t more = steps.unchecked().size() - named;
  return more == 0 ? why : why + " and " + std::to_string(more) + " more";
}

}  // namespace

detect::Stage stage_of_kind(std::string_view kind) {
  if (kind == kLogged) return detect::Stage::loss;
  if (kind == kind::kInput || kind == kind::kInputEntropy) return detect::Stage::input;
  switch (moment_of(kind)) {
    case 0:
      return detect::Stage::weights;
    case 1:
      return detect::Stage::forward;
    case 2:
      return detect::Stage::grad_unreduced;
    case 3:
    case 4:
      return detect::Stage::grad_reduced;
    case 6:
      return detect::Stage::update;
    default:
      return detect::Stage::moments;
  }
}

Diagnosis diagnose(const std::filesystem::path& run, const ReadOptions& options) {
  Diagnosis result;
  FirstBadOfRun bad = first_bad(run, options);
  RunStream stream(run, options);
  detect::Parameters parameters;
  for (const Series& series : stream.facts().series) parameters.add(series);
  std::vector<std::int32_t> ranks(stream.facts().ranks.begin(), stream.facts().ranks.end());
  for (const int missing : stream.facts().missing.ranks) ranks.push_back(missing);
  std::ranges::sort(ranks);
  detect::Engine engine(parameters.tensors(), ranks);
  std::vector<Damage> damage;
  FoundTogether together(bad.found);
  const bool is_whole = options.kinds.empty() && options.include.empty() &&
                        options.exclude.empty() && options.ranks.empty();
  StepByStep steps(stream, is_whole, parameters, engine, together);
  result.rows = steps.run(damage);
  detect::Findings findings = engine.findings();
  result.tensors = parameters.tensors();
  if (bad.found) {
    const auto same = [&](const detect::Tensor& one) {
      return one.name == bad.found->series.name && one.chunk == bad.found->series.chunk;
    };
    const auto known = std::ranges::find_if(result.tensors, same);
    const auto place = static_cast<std::uint32_t>(known - result.tensors.begin());
    if (known == result.tensors.end()) {
      const Series& series = bad.found->series;
      const std::string& name = series.kind == kind::kInput ? series.element : series.name;
      result.tensors.push_back({name, series.chunk, series.optimizer});
    }
    findings.add(finding_of(*bad.found, place, together.tensors()));
  }
  result.run = stream.take_facts();
  result.run.damage.insert(result.run.damage.end(), damage.begin(), damage.end());
  result.findings = findings.all();
  result.left_out = findings.left_out();
  result.verdict = findings.verdict();
  constexpr std::string_view kUpdateOf = "update of ";
  const std::map<std::string, std::string> unrecorded = not_covered(run, options);
  const bool has_unknown_formula = std::ranges::any_of(
      unrecorded, [&](const auto& one) { return one.first.starts_with(kUpdateOf); });
  for (int i = 0; i < detect::kChecks; ++i) {
    const auto check = static_cast<Check>(i);
    const std::int64_t times = check == Check::finite ? bad.rows : findings.count_of(check);
    if (times > 0) {
      Diagnosis::Checked& one = result.checked.emplace_back(check, times);
      for (int e = 0; e < detect::kEvidences; ++e) {
        one.by[e] = findings.count_of(check, static_cast<detect::Evidence>(e));
      }
    } else if (check != Check::update || !has_unknown_formula) {
      result.not_checked.push_back({std::string(detect::check_name(check)),
                                    reason_unchecked(check, result.run, ranks.size())});
    }
  }
  for (const auto& [what, why] : unrecorded) {
    const bool is_formula = what.starts_with(kUpdateOf);
    const std::string of = is_formula ? what.substr(kUpdateOf.size()) : what;
    result.not_checked.push_back(
        {std::string(is_formula ? "update" : kNotRecorded), of + ": " + why});
  }
  const std::string edits = edits_text(result.run);
  if (!edits.empty()) result.not_checked.push_back({"gap, moments, update", edits});
  const std::string why = why_unchecked(steps, result.tensors);
  if (!why.empty()) result.not_checked.push_back({"fingerprints and sketches", why});
  return result;
}

}  // namespace trainmon
