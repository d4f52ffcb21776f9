// The findings of all checks, beside what came before any of them.
#include "answers/diagnose.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "answers/diagnose_starts.h"
#include "answers/steps_in_order.h"
#include "answers/unchecked.h"
#include "base/text.h"
#include "detect/parameters.h"
#include "model/kinds.h"
#include "read/run_stream.h"
#include "trainmon/first_bad.h"

namespace trainmon {
namespace {

using detect::Check;
using detect::Finding;

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
  // A loss scaler makes and drops such gradients as its way of working, be it the training's own.
  const double scale = bad.row.loss_scale;
  const bool is_routine =
      bad.row.fate == Fate::skipped && may_be_why_skipped(bad.series.kind, scale);
  one.certain = !is_routine || (scale == 1.0 && !bad.was_left_out);
  if (bad.is_filled_in) one.certain = false;
  one.text = bad.came_from.empty()
                 ? bad.series.kind + " has a NaN or an infinity"
                 : "a NaN or an infinity came from " + bad.came_from + ": " + bad.why;
  if (bad.follows_gap) one.text += "; " + gap_text(one.step);
  return one;
}

Finding finding_of(const ReadScalar& loss) {
  Finding one;
  one.restart = loss.restart;
  one.step = loss.step;
  one.check = Check::finite;
  one.stage = detect::Stage::loss;
  one.ranks = {loss.rank};
  one.certain = false;
  one.text =
      printable(loss.name) + " was not finite, though gradients of its step were, or it was later";
  return one;
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

namespace {

StepsInOrder steps_of(const Recording& recording, const RunStream& stream, const FirstBadOfRun& bad,
                      const ReadOptions& options) {
  auto parameters = std::make_shared<detect::Parameters>();
  for (const Series& series : stream.facts().series) parameters->add(series);
  std::vector<std::int32_t> ranks(stream.facts().ranks.begin(), stream.facts().ranks.end());
  // That some are missing matters to each step, and how many does not: run.json alone says it.
  std::size_t shown = ranks.size();
  for (const int missing : stream.facts().missing.ranks) {
    if (shown-- == 0) break;
    ranks.push_back(missing);
  }
  std::ranges::sort(ranks);
  const bool is_whole = options.kinds.empty() && options.include.empty() &&
                        options.exclude.empty() && options.ranks.empty();
  StepsInOrder steps(std::move(parameters), std::move(ranks), bad.found, is_whole);
  for (const auto& [rank, optimizer] : recording.formulas) {
    steps.know_formula(rank, optimizer);
  }
  const auto is_of_ranks = [](const auto& one) {
    const std::string_view check = check_not_covered(one.first);
    return check == "reduce" || check == "replicas";
  };
  if (std::ranges::any_of(recording.not_covered, is_of_ranks)) steps.leave_out_by_hand();
  return steps;
}

// A user asks for a canary, and a model for a recomputation.
bool is_wanted(Check check, const std::vector<std::string>& kinds) {
  const auto has = [&](std::string_view kind) {
    return std::ranges::find(kinds, kind) != kinds.end();
  };
  if (check == Check::recompute) return has(kind::kActvRecomputed);
  return check != Check::canary || has(kind::kCanaryActv) || has(kind::kCanaryGrad);
}

Diagnosis finished(const Recording& recording, RunStream& stream, const FirstBadOfRun& bad,
                   const StepsInOrder& steps) {
  Diagnosis result;
  result.rows = steps.rows();
  result.control_steps = recording.control_steps;
  detect::Findings findings = steps.findings_at_end();
  result.tensors = steps.tensors();
  const auto place_of = [&](const Series& series) {
    const auto same = [&](const detect::Tensor& one) {
      return one.name == series.name && one.chunk == series.chunk &&
             (one.element.empty() || one.element == series.element);
    };
    const auto known = std::ranges::find_if(result.tensors, same);
    const auto place = static_cast<std::uint32_t>(known - result.tensors.begin());
    if (known == result.tensors.end()) {
      result.tensors.push_back({series.name, series.chunk, series.optimizer, series.element});
    }
    return place;
  };
  if (bad.filled_in) {
    findings.add(finding_of(*bad.filled_in, place_of(bad.filled_in->series), {}));
  }
  if (bad.found) {
    findings.add(finding_of(*bad.found, place_of(bad.found->series), steps.together()));
  }
  for (const ReadScalar& loss : bad.passed_losses) findings.add(finding_of(loss));
  result.run = stream.take_facts();
  result.findings = findings.all();
  result.left_out = findings.left_out();
  result.verdict = findings.verdict();
  const auto is_named = [&](Check check) {
    return std::ranges::any_of(recording.not_covered,
                               [&](const auto& one) {
                                 return check_not_covered(one.first) == detect::check_name(check);
                               }) ||
           std::ranges::any_of(findings.not_checked(),
                               [&](const auto& one) { return one.first.first == check; });
  };
  for (int i = 0; i < detect::kChecks; ++i) {
    const auto check = static_cast<Check>(i);
    const std::int64_t times = check == Check::finite ? bad.rows : findings.count_of(check);
    if (times > 0) {
      Diagnosis::Checked& one = result.checked.emplace_back(check, times);
      for (int e = 0; e < detect::kEvidences; ++e) {
        one.by[e] = findings.count_of(check, static_cast<detect::Evidence>(e));
      }
    } else if (!is_named(check) && !has_no_such_state(check, recording) &&
               is_wanted(check, result.run.kinds)) {
      result.not_checked.push_back(
          {std::string(detect::check_name(check)),
           reason_unchecked(check, result.run, steps, recording.has_checks)});
    }
  }
  for (const auto& [what, times] : findings.not_checked()) {
    result.not_checked.push_back({std::string(detect::check_name(what.first)),
                                  what.second + ": " + grouped(times) + " times"});
  }
  for (const auto& [what, why] : recording.not_covered) {
    const std::string check(check_not_covered(what));
    const std::string of = check.empty() ? what : what.substr(check.size() + 4);  // " of "
    result.not_checked.push_back(
        {check.empty() ? std::string(kNotRecorded) : check, of + ": " + why});
  }
  const std::string edits = edits_text(result.run);
  if (!edits.empty()) result.not_checked.push_back({"gap, moments, update", edits});
  for (const auto& [rank, left_out] : steps.left_out()) {
    result.not_checked.push_back(
        {"all but finite", "rank " + std::to_string(rank) + " in " + grouped(left_out.size()) +
                               " steps, the first " + std::to_string(*left_out.begin()) +
                               ": other ranks went through them again in a newer start"});
  }
  const std::string why = why_by_statistics(steps, result.tensors, recording.has_checks);
  if (!why.empty()) result.not_checked.push_back({"fingerprints and sketches", why});
  return result;
}

}  // namespace

Diagnosis diagnose(const std::filesystem::path& run, const ReadOptions& options) {
  const OpenedRun opened(run, options);
  Diagnosis result = diagnose(opened, options);
  result.left_history = left_history(opened, options, result);
  return result;
}

Diagnosis diagnose(const OpenedRun& run, const ReadOptions& options) {
  std::vector<Damage> damage;
  Diagnosis result = options.all_restarts ? diagnose_starts(run, options, damage)
                                          : diagnose_record(run, options, damage);
  result.run.damage.insert(result.run.damage.end(), damage.begin(), damage.end());
  return result;
}

Diagnosis diagnose_record(const OpenedRun& run, const ReadOptions& options,
                          std::vector<Damage>& damage) {
  const FirstBadOfRun bad = first_bad(run, options);
  RunStream stream(run, options);
  const Recording recording = recording_of(run.directories, options);
  StepsInOrder steps = steps_of(recording, stream, bad, options);
  steps.follow(stream);
  steps.read_whole(stream, damage);
  return finished(recording, stream, bad, steps);
}

GrowingDiagnosis::GrowingDiagnosis() = default;
GrowingDiagnosis::~GrowingDiagnosis() = default;

Diagnosis GrowingDiagnosis::look(const OpenedRun& run) {
  const ReadOptions options;
  const FirstBadOfRun bad = first_bad(run, options);
  RunStream stream(run, options);
  const auto read_all = [&] {
    Diagnosis whole = diagnose(run, options);
    rows_read_ = whole.rows;
    return whole;
  };
  if (!stream.facts().damage.empty()) {
    growth_.forget();
    return read_all();
  }
  const bool is_same = growth_.look(stream);
  const Recording recording = recording_of(run.directories, options);
  if (!is_same || !steps_ || !steps_->holds(stream.facts(), bad.found)) {
    if (is_same) {
      growth_.forget();
      growth_.look(stream);
    }
    steps_ = std::make_unique<StepsInOrder>(steps_of(recording, stream, bad, options));
  }
  std::vector<Damage> damage;
  steps_->follow(stream);
  const std::int64_t before = steps_->rows();
  if (!steps_->is_disordered()) steps_->read_on(stream, growth_.settled(), damage);
  StepsInOrder now = *steps_;
  if (!now.is_disordered()) now.read_on(stream, growth_.open(), damage);
  if (!damage.empty()) growth_.forget();
  if (now.is_disordered() || !damage.empty()) return read_all();
  rows_read_ = now.rows() - before;
  now.end();
  return finished(recording, stream, bad, now);
}

}  // namespace trainmon
