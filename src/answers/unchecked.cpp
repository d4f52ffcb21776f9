#include "answers/unchecked.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <set>
#include <vector>

#include "base/text.h"
#include "model/own_scalars.h"
#include "read/account.h"
#include "read/run_layout.h"

namespace trainmon {

using detect::Check;

namespace {

constexpr std::string_view kWithoutChecks = "not recorded, watch(..., checks=True) does it";
constexpr const char* kUnrelated =
    "nothing says how the tensors of ranks go together: no wrapper is around the model that "
    "trainmon knows";

constexpr const char* kNoReduction =
    "no tensor of which all ranks recorded the gradient before and after its reduction";

// Whether the record says that something is the same on ranks, or parts of one whole.
bool has_related(const RunRows& run) {
  return std::ranges::any_of(run.series, [](const Series& one) {
    return one.replication != Replication::independent && detect::quantity_of(one.kind) >= 0;
  });
}

}  // namespace

// One function, for each check has its reason.
std::string reason_unchecked(Check check, const RunRows& run, const StepsInOrder& steps,
                             bool has_checks) {
  const std::size_t ranks = steps.ranks();
  const auto has = [&](std::string_view kind) {
    return std::ranges::find(run.kinds, kind) != run.kinds.end();
  };
  const auto lacks = [&](std::initializer_list<std::string_view> kinds) {
    std::string missing;
    for (const std::string_view kind : kinds) {
      if (!has(kind)) missing += (missing.empty() ? "" : ", ") + std::string(kind);
    }
    if (missing.empty()) return missing;
    return has_checks ? "not recorded: " + missing : std::string(kWithoutChecks);
  };
  // Their gradients are not here, and their replicas neither.
  const std::vector<int>& missing = run.missing.ranks;
  const std::string of_missing =
      missing.empty()
          ? ""
          : (missing.size() == 1 ? "missing rank " : "missing ranks ") + ranks_text(missing);
  std::string why;
  switch (check) {
    case Check::start:
      why = lacks({"param_origin"});
      break;
    case Check::input:
      why = lacks({"input"});
      if (why.empty()) {
        why = "what the model was given has no fingerprint";
        if (!has_checks) why += ": checks=True records it";
      }
      break;
    case Check::present:
      why = lacks({"grad_reduced"});
      break;
    case Check::gap:
      why = lacks({"param_origin", "param_updated"});
      break;
    case Check::reduce:
      why = ranks < 2 ? "one rank" : lacks({"grad_unreduced", "grad_reduced"});
      if (why.empty()) why = of_missing;
      if (why.empty()) why = has_related(run) ? kNoReduction : kUnrelated;
      break;
    case Check::replicas:
      why = ranks < 2          ? "one rank"
            : has_related(run) ? "no tensor that several ranks hold alike"
                               : kUnrelated;
      if (ranks > 1 && run.ranks.size() < 2) why = of_missing;
      break;
    case Check::exp_avg:
      why = lacks({"exp_avg", "grad_reduced"});
      break;
    case Check::exp_avg_sq:
      why = lacks({"exp_avg_sq", "grad_reduced"});
      break;
    case Check::update:
      why = lacks({"param_origin", "param_updated", "grad_reduced"});
      break;
    case Check::zero:
      why = lacks({"grad_reduced"});
      break;
    case Check::config:
      why = "the optimizer declared no values";
      break;
    case Check::norm:
      why = lacks({"grad_reduced"});
      if (why.empty()) why = "log() was given no grad_norm, or rows of it are not there";
      break;
    case Check::recompute:
      why = "no module was called once in the forward and once more by its backward";
      break;
    case Check::canary:
      why = "too few canaries";
      break;
    case Check::finite:
      why = "no rows";
      break;
  }
  return why.empty() ? "no two steps in a row with the rows that it needs, or an optimizer whose "
                       "formula is not known"
                     : why;
}

std::string why_by_statistics(const StepsInOrder& steps, const std::vector<detect::Tensor>& tensors,
                              bool has_checks) {
  constexpr std::size_t kNamed = 20;
  if (steps.unchecked().empty()) return "";
  if (steps.checked().empty() && !has_checks) return std::string(kWithoutChecks);
  std::string why = "not recorded of ";
  std::size_t named = 0;
  for (const std::uint32_t tensor : steps.unchecked()) {
    if (named == kNamed) break;
    why += (named++ == 0 ? "" : ", ") + tensors[tensor].name;
  }
  const std::size_t more = steps.unchecked().size() - named;
  return more == 0 ? why : why + " and " + std::to_string(more) + " more";
}

Recording recording_of(const std::vector<RankDirectory>& directories, const ReadOptions& options) {
  Recording found;
  for (std::size_t i = 0; i < directories.size(); ++i) {
    const RankDirectory& one = directories[i];
    const bool is_asked_for =
        options.ranks.empty() || std::ranges::find(options.ranks, one.rank) != options.ranks.end();
    if (one.error || !is_asked_for || !is_newest(directories, i)) continue;
    std::vector<Damage> known_already;
    const RunFacts facts = read_run_json(one, known_already);
    found.has_checks |= facts.has_checks;
    if (facts.control_since >= 0) found.control_steps.insert(facts.control_since);
    found.not_covered.insert(facts.not_covered.begin(), facts.not_covered.end());
    for (std::size_t number = 0; number < facts.formulas.size(); ++number) {
      if (facts.formulas[number].empty()) {
        found.has_other_formula = true;
        continue;
      }
      found.formula_names.insert(facts.formulas[number]);
      found.formulas.emplace_back(one.rank, static_cast<int>(number));
    }
  }
  return found;
}

bool has_no_such_state(Check check, const Recording& recording) {
  if (check != Check::exp_avg && check != Check::exp_avg_sq) return false;
  if (recording.has_other_formula || recording.formula_names.empty()) return false;
  const std::set<std::string> kWithout = {"SGD", "Momentum", "RMSprop", "RMSProp", "Adagrad"};
  return std::ranges::includes(kWithout, recording.formula_names);
}

std::string_view check_not_covered(std::string_view what) {
  constexpr std::array<std::string_view, 5> kChecks = {"gap", "reduce", "replicas", "update",
                                                       "canary"};
  for (const std::string_view check : kChecks) {
    if (what.starts_with(check) && what.substr(check.size()).starts_with(" of ")) return check;
  }
  return "";
}

std::string edits_text(const RunRows& run) {
  constexpr std::size_t kShown = 5;
  std::map<std::int64_t, std::set<int>> ranks;  // by step
  for (const ReadScalar& one : run.scalars) {
    if (one.name == kEditScalar) ranks[one.step].insert(one.rank);
  }
  std::string text;
  std::size_t shown = 0;
  for (const auto& [step, of] : ranks) {
    if (shown++ == kShown) break;
    text += (text.empty() ? "" : ", ") + std::to_string(step) + " (" +
            (of.size() == 1 ? "rank " : "ranks ") + ranks_text({of.begin(), of.end()}) + ")";
  }
  if (text.empty()) return text;
  if (ranks.size() > kShown) text += " and " + std::to_string(ranks.size() - kShown) + " more";
  return "weights or state were edited or replaced after step " + text;
}

}  // namespace trainmon
