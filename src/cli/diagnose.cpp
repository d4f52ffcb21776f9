// trainmon diagnose RUN: which step, stage, rank and tensor was wrong first.
#include "answers/diagnose.h"

#include <iostream>
#include <map>
#include <memory>

#include "base/text.h"
#include "cli/output.h"
#include "cli/select.h"

namespace trainmon::cli {
namespace {

using detect::Finding;

std::string ranks_of(const Finding& one) {
  constexpr std::size_t kMostText = 40;
  if (one.ranks.empty()) return "";
  if (one.ranks.size() == 1) return ", rank " + std::to_string(one.ranks.front());
  const std::string text = ranks_text({one.ranks.begin(), one.ranks.end()});
  if (text.size() <= kMostText) return ", ranks " + text;
  return ", " + grouped(static_cast<std::int64_t>(one.ranks.size())) + " ranks from " +
         std::to_string(one.ranks.front()) + " on";
}

std::string place_of(const Diagnosis& diagnosis, const Finding& one) {
  const std::string tensors = tensors_text(diagnosis, one);
  const int newest = diagnosis.run.newest_restart;
  const std::string restart = newest > 0 ? ", restart " + std::to_string(one.restart) : "";
  return "step " + std::to_string(one.step) + restart + ", " +
         std::string(detect::stage_name(one.stage)) + ranks_of(one) +
         (tensors.empty() ? "" : ", " + tensors);
}

// Nothing of checks whose evidence is not a choice.
std::string evidence_of(const Finding& one) {
  if (one.check == detect::Check::config || one.check == detect::Check::finite) return "";
  return ", by " + std::string(detect::evidence_name(one.evidence));
}

void print_verdict(const Diagnosis& diagnosis, const Finding& first, const Context& context) {
  std::cout << red(context, "first wrong: " + place_of(diagnosis, first)) << "\n";
  std::cout << "  " << printable(first.text) << "\n";
  if (first.bound > 0.0 && first.check != detect::Check::config) {
    std::cout << "  off by " << number_text(first.value, 3) << ", rounding explains "
              << number_text(first.bound, 3) << "\n";
  }
  std::cout << "  check " << detect::check_name(first.check)
            << (first.certain ? ", certain" : ", not certain") << evidence_of(first) << "\n";
}

// What follows, shortly: it may be a consequence.
void print_others(const Diagnosis& diagnosis) {
  constexpr std::size_t kShown = 2;
  std::size_t shown = 0;
  for (std::size_t i = 0; i < diagnosis.findings.size() && shown < kShown; ++i) {
    if (i == diagnosis.verdict) continue;
    const Finding& one = diagnosis.findings[i];
    const char* const head =
        diagnosis.verdict ? "then, perhaps because of it:\n" : "noticed, and perhaps meant:\n";
    std::cout << (shown++ == 0 ? head : "") << "  " << place_of(diagnosis, one) << ": "
              << printable(one.text) << "\n";
  }
  const std::size_t first = diagnosis.verdict ? 1 : 0;
  const std::int64_t more =
      static_cast<std::int64_t>(diagnosis.findings.size() - first - shown) + diagnosis.left_out;
  if (more > 0) std::cout << "  and " << grouped(more) << " more\n";
}

void print_text(const Diagnosis& diagnosis, const std::string& run, const Context& context) {
  if (diagnosis.verdict) {
    print_verdict(diagnosis, diagnosis.findings[*diagnosis.verdict], context);
    if (diagnosis.findings.size() > 1) print_others(diagnosis);
  } else {
    std::cout << "nothing certainly wrong in " << grouped(diagnosis.rows) << " rows\n";
    for (const std::string& sentence : diagnosis.run.skipped) std::cout << "  " << sentence << "\n";
    if (!diagnosis.findings.empty()) print_others(diagnosis);
  }
  std::cout << "checked";
  for (const Diagnosis::Checked& one : diagnosis.checked) {
    std::cout << "  " << detect::check_name(one.check) << " " << grouped(one.times);
  }
  std::cout << "\n";
  std::int64_t bits = 0, sums = 0;
  for (const Diagnosis::Checked& one : diagnosis.checked) {
    bits += one.by[static_cast<std::size_t>(detect::Evidence::fingerprints)];
    sums += one.by[static_cast<std::size_t>(detect::Evidence::sketches)];
  }
  if (bits + sums > 0) {
    std::cout << "of these by fingerprints " << grouped(bits) << ", by sketches " << grouped(sums)
              << "\n";
  }
  std::map<std::string, std::string> why;  // reason -> checks
  for (const Diagnosis::NotChecked& one : diagnosis.not_checked) {
    why[one.why] += (why[one.why].empty() ? "" : ", ") + one.check;
  }
  for (const auto& [reason, checks] : why) {
    std::cout << "not checked: " << checks << ": " << reason << "\n";
  }
  if (!diagnosis.verdict || context.quiet) return;
  const Finding& first = diagnosis.findings[*diagnosis.verdict];
  std::cerr << "next: trainmon show " << shell_word(run);
  if (first.tensors.size() == 1) {
    const std::string& name = diagnosis.tensors[first.tensors.front()].name;
    if (!name.empty()) std::cerr << " --name " << shell_word(name);
  }
  std::cerr << " --steps " << std::max<std::int64_t>(0, first.step - 1) << ":" << first.step
            << (first.restart < diagnosis.run.newest_restart ? " --all-restarts" : "") << "\n";
}

void run_diagnose(const Selection& selection, Context& context) {
  const ReadOptions options = read_options(selection);
  const Diagnosis diagnosis = diagnose(selection.run, options);
  say_of_run(diagnosis.run, diagnosis.rows, options, context);
  // A finding stands, whatever else may be missing.
  if (diagnosis.verdict) context.exit_code = kFindings;
  if (!context.json) return print_text(diagnosis, selection.run, context);
  std::cout << diagnosis_json(diagnosis) << "\n";
}

}  // namespace

void add_diagnose(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("diagnose", "which step, rank and tensor was wrong first");
  const auto selection = std::make_shared<Selection>();
  add_selection(*command, *selection);
  command->footer(R"(Checks what every correct step of a training obeys: weights change in the
optimizer's step alone, replicas are equal, the reduced gradient is the mean of
the unreduced ones, moments follow from the gradient, SGD moves weights by its
formula. Each has the bound of its rounding and nothing to tune. Record with
checks=True on every rank for all of them; without, statistics are compared
where kinds has grads, weights and moments. What was not checked is listed. Exit code 1 for a verdict, 3 without one in a record that
is not complete. What may be meant is noticed only.

Examples:
  trainmon diagnose runs/a
  trainmon diagnose runs/a --json)");
  command->callback([selection, &context] { run_diagnose(*selection, context); });
}

}  // namespace trainmon::cli
