// trainmon diagnose RUN: which step, stage, rank and tensor was wrong first.
#include "answers/diagnose.h"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>
#include <memory>
#include <vector>

#include "base/text.h"
#include "cli/follow.h"
#include "cli/output.h"
#include "cli/select.h"
#include "read/completeness.h"

namespace trainmon::cli {
namespace {

using detect::Finding;

void print_verdict(const Diagnosis& diagnosis, const Finding& first, const std::string& also,
                   const Context& context) {
  std::cout << red(context, "first wrong: " + place_text(diagnosis, first)) << "\n";
  std::cout << "  " << printable(first.text) << "\n";
  if (const std::string bound = bound_text(first); !bound.empty()) {
    std::cout << "  " << bound << "\n";
  }
  std::cout << "  " << check_text(first) << "\n";
  if (!also.empty()) std::cout << "  " << also << "\n";
  if (first.check == detect::Check::gap) {
    std::cout << "  a program that means such a change announces it: with mon.edits(\"why\"):\n";
  }
}

// The later steps of each finding that several steps have, by the first of them.
std::map<std::size_t, std::vector<std::int64_t>> later_steps(
    const Diagnosis& diagnosis, const std::vector<std::size_t>& firsts) {
  std::map<std::size_t, std::vector<std::int64_t>> steps;
  for (std::size_t i = 0; i < firsts.size(); ++i) {
    if (firsts[i] != i) steps[firsts[i]].push_back(diagnosis.findings[i].step);
  }
  return steps;
}

// The other findings, shortly. What follows may be a consequence; what is of the same step need not
// be.
void print_others(const Diagnosis& diagnosis, const std::vector<std::size_t>& firsts,
                  std::map<std::size_t, std::vector<std::int64_t>>& again) {
  // Where nothing is certain, what was noticed is all that leads to a place.
  const std::size_t shown = diagnosis.verdict ? 2 : 5;
  std::vector<std::size_t> noticed, here, later;
  for (std::size_t i = 0; i < diagnosis.findings.size(); ++i) {
    const Finding& one = diagnosis.findings[i];
    if (i == diagnosis.verdict || firsts[i] != i) continue;
    const bool is_of_other_start = !diagnosis.starts.empty() && diagnosis.verdict &&
                                   one.restart != diagnosis.findings[*diagnosis.verdict].restart;
    if (is_of_other_start && one.certain) continue;
    if (!diagnosis.verdict || is_of_other_start) {
      noticed.push_back(i);
      continue;
    }
    const std::int64_t step = diagnosis.findings[*diagnosis.verdict].step;
    (one.step < step ? noticed : one.step == step ? here : later).push_back(i);
  }
  const auto print = [&](const char* head, const std::vector<std::size_t>& list,
                         std::int64_t left_out) {
    for (std::size_t i = 0; i < std::min(shown, list.size()); ++i) {
      const Finding& one = diagnosis.findings[list[i]];
      const std::string also = also_text(again[list[i]]);
      std::cout << (i == 0 ? head : "") << "  " << place_text(diagnosis, one) << ": "
                << printable(one.text) << (also.empty() ? "" : ", " + also) << "\n";
    }
    const std::int64_t more =
        std::max<std::int64_t>(0, std::ssize(list) - static_cast<std::int64_t>(shown)) + left_out;
    if (more > 0) std::cout << "  and " << grouped(more) << " more\n";
  };
  print("also at this step:\n", here, 0);
  print("then, perhaps because of it:\n", later, diagnosis.verdict ? diagnosis.left_out : 0);
  print("noticed, and perhaps meant:\n", noticed, diagnosis.verdict ? 0 : diagnosis.left_out);
}

// Where all starts were asked for: what was first wrong in those that have not the verdict.
void print_starts(const Diagnosis& diagnosis) {
  if (!diagnosis.verdict) return;
  std::vector<int> sound;
  std::string others;
  for (const Diagnosis::Start& one : diagnosis.starts) {
    if (!one.verdict) {
      sound.push_back(one.restart);
    } else if (one.verdict != diagnosis.verdict) {
      const Finding& first = diagnosis.findings[*one.verdict];
      others += "  " + place_text(diagnosis, first) + ": " + printable(first.text) + "\n";
    }
  }
  if (!others.empty()) std::cout << "first wrong in other starts:\n" << others;
  if (sound.empty()) return;
  std::cout << "nothing certainly wrong in restart" << (sound.size() == 1 ? " " : "s ")
            << ranks_text(sound) << "\n";
}

// What was not checked, by reason.
void print_not_checked(const Diagnosis& diagnosis, const std::string& run) {
  std::map<std::string, std::string> why;  // reason -> checks
  std::int64_t unrecorded = 0;
  for (const Diagnosis::NotChecked& one : diagnosis.not_checked) {
    if (one.check == kNotRecorded && unrecorded++ > 0) continue;
    why[one.why] += (why[one.why].empty() ? "" : ", ") + one.check;
  }
  for (const auto& [reason, checks] : why) {
    std::cout << "not checked: " << printable(checks) << ": " << printable(reason) << "\n";
  }
  if (unrecorded > 1) {
    std::cout << "not recorded: " << grouped(unrecorded - 1) << " more; trainmon doctor "
              << shell_word(run) << " lists them\n";
  }
}

void print_left_history(const Diagnosis& diagnosis) {
  if (!diagnosis.left_history) {
    std::cout << "found no abrupt change of a norm or of a logged loss. Other faults may be there: "
                 "trainmon compare holds the run against a good one\n";
    return;
  }
  std::cout << "changed abruptly, which no check judges:\n  "
            << place_text(diagnosis, *diagnosis.left_history) << "\n  "
            << size_text(diagnosis, *diagnosis.left_history) << "\n";
}

void print_text(const Diagnosis& diagnosis, const std::string& run, const Context& context) {
  const std::vector<std::size_t> firsts = first_alike(diagnosis);
  auto again = later_steps(diagnosis, firsts);
  if (diagnosis.verdict) {
    const std::string also = also_text(again[*diagnosis.verdict]);
    print_verdict(diagnosis, diagnosis.findings[*diagnosis.verdict], also, context);
    print_others(diagnosis, firsts, again);
  } else {
    std::cout << sound_text(diagnosis) << "\n";
    for (const std::string& sentence : diagnosis.run.skipped) std::cout << "  " << sentence << "\n";
    print_others(diagnosis, firsts, again);
    print_left_history(diagnosis);
  }
  print_starts(diagnosis);
  // Of a call in `input`, of a declared value in `config`, of a norm in `norm`.
  std::cout << "checked, so many times (once a tensor, rank and step):";
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
  print_not_checked(diagnosis, run);
  if (context.quiet) return;
  const bool is_by_line = diagnosis.left_history && !tells_more_than_lines(diagnosis);
  std::cerr << "next: "
            << (is_by_line ? next_command(*diagnosis.left_history, run)
                           : next_command(diagnosis, run))
            << "\n";
}

struct DiagnoseArguments {
  Selection selection;
  bool follow = false;
  double interval = 1.0;
};

// Until something is certainly wrong, the run has ended or somebody wants no more. A look reads the
// run from its beginning, so that looks are at most a fifth of the time.
Diagnosis follow(const DiagnoseArguments& arguments, const ReadOptions& options,
                 const Context& context) {
  constexpr double kPause = 4.0;  // times as long as a look
  using Clock = std::chrono::steady_clock;
  if (!context.quiet) std::cerr << "following until something is wrong; Ctrl-C ends\n";
  while (true) {
    const bool is_over = ended(arguments.selection.run, options).has_value();
    const auto begin = Clock::now();
    const OpenedRun run(arguments.selection.run, options);
    Diagnosis diagnosis = diagnose(run, options);
    const auto whole = [&] {
      diagnosis.left_history = left_history(run, options, diagnosis);
      return std::move(diagnosis);
    };
    const double took = std::chrono::duration<double>(Clock::now() - begin).count();
    if (diagnosis.verdict || is_over) return whole();
    if (!wait_to_look(std::max(arguments.interval, kPause * took))) return whole();
  }
}

void run_diagnose(const DiagnoseArguments& arguments, Context& context) {
  const Selection& selection = arguments.selection;
  const ReadOptions options = read_options(selection);
  if (arguments.follow && !wait_for_start(selection.run, arguments.interval, context)) return;
  const Diagnosis diagnosis =
      arguments.follow ? follow(arguments, options, context) : diagnose(selection.run, options);
  say_of_run(diagnosis.run, diagnosis.rows, options, context);
  // A finding stands, whatever else may be missing.
  if (diagnosis.verdict) context.exit_code = kFindings;
  if (!context.json) return print_text(diagnosis, selection.run, context);
  std::cout << diagnosis_json(diagnosis) << "\n";
}

}  // namespace

void add_diagnose(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("diagnose", "which step, rank and tensor was wrong first");
  const auto arguments = std::make_shared<DiagnoseArguments>();
  add_selection(*command, arguments->selection);
  command->get_option("--all-restarts")->description("check each start by itself, whole");
  command->add_flag("-f,--follow", arguments->follow,
                    "look again until something is wrong or the run ends");
  command->add_option("--interval", arguments->interval, "seconds between two looks, at least")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 3600.0));
  command->footer(R"(Checks the equations that every correct step obeys. Weights change only in the
optimizer's step, and replicas are equal. The reduced gradient is the mean of
the unreduced ones. Moments follow from the gradient, and weights move by the
optimizer's formula. The bound of each check is its rounding; nothing needs
tuning. Record with checks=True on every rank for all checks. Without it, the
record needs grads, weights and moments, and only statistics are compared. The
answer lists what was not checked. What may be intended is only noticed.
Without a verdict it names the earliest value that left its own history far
behind, as trainmon top scores it. No check judges that.
-f waits for the first start where there is none yet.

Of a step that a restart went through again, the newest start is checked.
--all-restarts checks each start by itself, as if it were the only one. The
verdict is then the one of the earliest step; those of other starts follow.

Exit code 1: there is a verdict. 3: there is none, but the record is incomplete,
or Ctrl-C came before the first start.

Examples:
  trainmon diagnose runs/a
  trainmon diagnose runs/a -f && echo sound
  trainmon diagnose runs/a --json)");
  command->callback([arguments, &context] { run_diagnose(*arguments, context); });
}

}  // namespace trainmon::cli
