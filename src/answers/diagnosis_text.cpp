// What a finding says, as people read it.
#include <algorithm>
#include <tuple>

#include "answers/diagnose.h"
#include "answers/shift.h"
#include "base/text.h"
#include "detect/findings.h"

namespace trainmon {
namespace {

using detect::Finding;

std::string ranks_of(const Finding& one) {
  constexpr std::size_t kMostText = 40;
  if (one.ranks.empty()) return "";
  if (one.ranks.size() == 1) return ", rank " + std::to_string(one.ranks.front());
  if (one.is_one_of_ranks && one.ranks.size() == 2) {
    return ", rank " + std::to_string(one.ranks[0]) + " or " + std::to_string(one.ranks[1]);
  }
  const std::string text = ranks_text({one.ranks.begin(), one.ranks.end()});
  const std::string some = one.is_one_of_ranks ? ", some of ranks " : ", ranks ";
  if (text.size() <= kMostText) return some + text;
  return ", " + grouped(static_cast<std::int64_t>(one.ranks.size())) + " ranks from " +
         std::to_string(one.ranks.front()) + " on";
}

}  // namespace

std::string place_text(const Diagnosis& diagnosis, const Finding& one) {
  const std::string tensors = detect::tensors_text(diagnosis.tensors, one);
  const int newest = diagnosis.run.newest_restart;
  const std::string restart = newest > 0 ? ", restart " + std::to_string(one.restart) : "";
  return "step " + std::to_string(one.step) + restart + ", " +
         std::string(detect::stage_name(one.stage)) + ranks_of(one) +
         (tensors.empty() ? "" : ", " + tensors);
}

std::string sound_text(const Diagnosis& diagnosis) {
  std::string text = "nothing certainly wrong in " + grouped(diagnosis.rows) +
                     (diagnosis.rows == 1 ? " row" : " rows");
  if (diagnosis.starts.size() > 1) {
    text += " of " + std::to_string(diagnosis.starts.size()) + " starts";
  }
  if (diagnosis.left_history && !tells_more_than_lines(diagnosis)) {
    return text + ", but something changed abruptly";
  }
  return diagnosis.findings.empty() ? text : text + ", but something was noticed";
}

std::vector<std::size_t> first_alike(const Diagnosis& diagnosis) {
  const auto said = [](const Finding& one) {
    return std::tie(one.restart, one.check, one.stage, one.ranks, one.is_one_of_ranks, one.tensors,
                    one.certain, one.text);
  };
  std::vector<std::size_t> firsts;
  for (const Finding& one : diagnosis.findings) {
    std::size_t first = 0;
    while (said(diagnosis.findings[first]) != said(one)) ++first;
    firsts.push_back(first);
  }
  return firsts;
}

std::string also_text(const std::vector<std::int64_t>& steps) {
  if (steps.empty()) return "";
  const std::string first = std::to_string(steps.front()), last = std::to_string(steps.back());
  if (steps.size() == 1) return "also in step " + first;
  if (steps.back() - steps.front() == std::ssize(steps) - 1) {
    return "also in steps " + first + " to " + last;
  }
  return "also in " + grouped(std::ssize(steps)) + " steps from " + first + " to " + last;
}

std::string check_text(const Finding& one) {
  std::string text = "check " + std::string(detect::check_name(one.check)) +
                     (one.certain ? ", certain" : ", not certain");
  switch (one.check) {
    case detect::Check::config:
    case detect::Check::finite:
    case detect::Check::present:
      return text;
    default:
      break;
  }
  return text + ", by " + std::string(detect::evidence_name(one.evidence));
}

namespace {

constexpr std::int64_t kYoung = ShiftSearch::kYoung;

// Most lines are unusual in the first steps of a run. A long one has others.
std::string grown(const RunRows& run) {
  const bool is_long = std::ranges::any_of(
      run.scalars, [](const ReadScalar& one) { return one.step >= 2 * kYoung; });
  return is_long ? " --steps " + std::to_string(kYoung) + ":" : "";
}

// Of what was the same bit for bit, and is not any more; end() for none.
auto changed_bits(const std::vector<Finding>& all) {
  return std::ranges::find_if(all, [](const Finding& one) {
    return one.check == detect::Check::canary || one.check == detect::Check::recompute;
  });
}

// What holds from the first steps on is mostly meant: of notices, what began later tells more.
const Finding& finding_to_look_at(const Diagnosis& diagnosis) {
  const auto& all = diagnosis.findings;
  if (diagnosis.verdict) return all[*diagnosis.verdict];
  if (const auto changed = changed_bits(all); changed != all.end()) return *changed;
  for (const std::int64_t from : {kYoung, std::int64_t{2}}) {
    const auto later =
        std::ranges::find_if(all, [&](const Finding& one) { return one.step >= from; });
    if (later != all.end()) return *later;
  }
  return all.front();
}

}  // namespace

bool tells_more_than_lines(const Diagnosis& diagnosis) {
  const auto& all = diagnosis.findings;
  if (all.empty() || !diagnosis.left_history) return !all.empty();
  if (changed_bits(all) != all.end()) return true;
  const std::int64_t step = finding_to_look_at(diagnosis).step;
  return step >= kYoung && step <= diagnosis.left_history->row.step;
}

std::string next_command(const Diagnosis& diagnosis, const std::filesystem::path& run) {
  std::string command = "trainmon show " + shell_word(run.native());
  if (diagnosis.findings.empty())
    return "trainmon top " + shell_word(run.native()) + grown(diagnosis.run);
  const Finding& first = finding_to_look_at(diagnosis);
  const auto steps = [&](std::int64_t before, std::int64_t after) {
    return " --steps " + std::to_string(std::max<std::int64_t>(0, first.step - before)) + ":" +
           std::to_string(first.step + after);
  };
  if (first.check == detect::Check::finite) return "trainmon first-bad " + shell_word(run.native());
  if (first.tensors.size() == 1) {
    const std::string& name = diagnosis.tensors[first.tensors.front()].name;
    if (!name.empty()) command += " --name " + shell_word(name);
  }
  if (first.check == detect::Check::config) command += " --declared";
  if (first.check == detect::Check::canary) {
    command +=
        first.stage == detect::Stage::forward ? " --kind canary_actv" : " --kind canary_grad";
  }
  // Of a rank that makes no step: others have such rows.
  if (first.check == detect::Check::update && first.tensors.empty()) command += " --kind update";
  const bool is_input = first.check == detect::Check::input;
  if (is_input) command += " --kind input";
  if (is_input && first.ranks.size() == 1) {
    command += " --rank " + std::to_string(first.ranks.front());
  }
  command += is_input ? steps(8, 7) : steps(1, 0);  // those that tell what is usual
  if (first.restart < diagnosis.run.newest_restart) command += " --all-restarts";
  return command;
}

}  // namespace trainmon
