// trainmon first-bad RUN: which rank, which tensor, which step went wrong first.
#include "model/first_bad.h"

#include <cmath>
#include <iostream>
#include <memory>
#include <tuple>

#include "answers/diagnose.h"
#include "base/text.h"
#include "cli/output.h"
#include "cli/select.h"
#include "model/kinds.h"
#include "trainmon/first_bad.h"

namespace trainmon::cli {
namespace {

std::string moment_text(std::string_view kind) {
  if (kind == kind::kParamOrigin) return "weight before the step";
  if (kind == kind::kParamUpdated) return "weight after the step";
  if (kind == kind::kInput) return "what the model is given, before the forward";
  if (kind == kind::kBuffer) return "buffer, after the step";
  if (kind == kind::kActv) return "activation, forward";
  if (kind == kind::kActvRecomputed) return "activation, recomputed in the backward";
  if (is_canary(kind)) return "canary, before the forward";
  if (kind == kind::kActvGrad) return "gradient of an activation, backward";
  if (kind == kind::kGradUnreduced) return "gradient before reduction, backward";
  if (kind == kind::kGradMicro) return "what one backward added, backward";
  if (kind == kind::kGradReduced) return "gradient as the optimizer sees it, before the step";
  if (kind == kind::kCc) return "collective";
  if (kind == kLogged) return "a scalar that log() was given";
  if (kind == kind::kMgDirection) return "momentum against gradient";
  return "optimizer state, after the step";
}

// Which restarts went wrong, too, and whether the newest did.
void print_restarts(const FirstBad& found, int newest_restart) {
  for (const FirstBad::OfRestart& one : found.restarts) {
    if (one.row.restart == found.row.restart) continue;
    std::cout << "  restart " << one.row.restart << ": first at step " << one.row.step << ", rank "
              << one.row.rank << ", " << printable(one.series.kind) << " "
              << tensor_text(one.series) << "\n";
  }
  if (found.restarts.back().row.restart < newest_restart) {
    std::cout << "  restart " << newest_restart << ", the newest, has nothing bad\n";
  }
}

void print_values(const FirstBad& found) {
  const RowState& state = found.row.state;
  std::cout << "  values    " << grouped(state.nans) << " NaN, " << grouped(state.pos_infs)
            << " +Inf, " << grouped(state.neg_infs) << " -Inf "
            << (state.is_estimate() ? "in a sample of " : "of ") << grouped(state.count)
            << " elements (" << dtype_name(found.series.dtype) << ")\n";
}

void print_place(const ReadRow& row, const Series& series) {
  std::cout << "  place     attempt " << row.attempt << ", micro step " << row.micro_step
            << ", call " << row.call << ", restart " << row.restart << ", seq " << row.seq << "\n";
  if (row.fate == Fate::skipped) {
    std::cout << "  note      the step was skipped (loss scale " << number_text(row.loss_scale)
              << ")"
              << (may_be_why_skipped(series.kind, row.loss_scale)
                      ? "; nothing outside of skipped steps is bad"
                      : "")
              << "\n";
  }
}

// The first step check that failed on a rank: it may tell of what is finite and earlier.
void print_failed_check(const RunRows& run, const std::string& path, bool is_detail) {
  const ReadAlert* first = nullptr;
  for (const ReadAlert& one : run.alerts) {
    if (!detect::is_check(one.alert.rule)) continue;
    if (first == nullptr || std::tie(one.restart, one.alert.step, one.rank) <
                                std::tie(first->restart, first->alert.step, first->rank)) {
      first = &one;
    }
  }
  if (first == nullptr) return;
  std::cout << (is_detail ? "  check     " : "but the check ") << first->alert.rule
            << " failed at step " << first->alert.step << " on rank " << first->rank
            << "; trainmon diagnose " << shell_word(path) << " says more\n";
}

// The first scalar that is not finite and that no name tells to be a loss: it may be meant.
void print_bad_scalar(const RunRows& run, const FirstBad* found) {
  const auto place = [](const auto& one) { return std::tie(one.restart, one.step, one.rank); };
  const ReadScalar* first = nullptr;
  for (const ReadScalar& one : run.scalars) {
    if (std::isfinite(one.value) || is_loss(one.name)) continue;
    if (first == nullptr || place(one) < place(*first)) first = &one;
  }
  if (first == nullptr) return;
  if (found != nullptr &&
      std::tie(first->restart, first->step) > std::tie(found->row.restart, found->row.step)) {
    return;
  }
  std::cout << (found != nullptr ? "  scalar    the logged " : "but the logged scalar ")
            << printable(first->name) << " is " << number_text(first->value, 6) << " at step "
            << first->step << " on rank " << first->rank
            << "; it counts where its name has \"loss\" in it\n";
}

// `is_whole`: nothing was left out by name.
void print_text(const FirstBad& found, const RunRows& facts, const std::string& run,
                const Context& context, bool is_whole) {
  const int newest_restart = facts.newest_restart;
  const ReadRow& row = found.row;
  const std::string where = row.rank < 0 ? "merged over ranks" : "rank " + std::to_string(row.rank);
  const std::string what = found.came_from.empty() ? tensor_text(found.series) : found.came_from;
  const bool has_restarts = row.restart > 0 || newest_restart > 0;
  std::cout << red(context, "first bad: step " + std::to_string(row.step) + ", " + where + ", " +
                                what +
                                (has_restarts ? ", restart " + std::to_string(row.restart) : ""))
            << "\n";
  const bool is_row = found.series.kind != kLogged;
  if (!found.came_from.empty()) {
    std::cout << "  why       " << printable(found.why) << "\n";
    if (!found.module.empty()) std::cout << "  module    " << found.module << "\n";
    if (is_row) std::cout << "  first row " << tensor_text(found.series) << "\n";
  }
  std::cout << "  kind      " << printable(found.series.kind) << " ("
            << moment_text(found.series.kind) << ")\n";
  if (is_row) print_values(found);
  if (found.ranks.size() > 1) {
    std::cout << "  ranks     " << ranks_text(found.ranks) << " are bad at this place\n";
  }
  if (is_row) print_place(row, found.series);
  if (found.follows_gap) std::cout << "  before    " << gap_text(row.step) << "\n";
  for (const std::string& change : found.changes) std::cout << "  before    " << change << "\n";
  if (is_whole) print_bad_scalar(facts, &found);
  print_failed_check(facts, run, true);
  print_restarts(found, newest_restart);
  if (context.quiet) return;
  const std::int64_t from = std::max<std::int64_t>(0, row.step - 3);
  if (!is_row) {
    std::cerr << "next: trainmon query " << shell_word(run)
              << " \"SELECT * FROM logged WHERE step BETWEEN " << from << " AND " << row.step
              << "\"\n";
    return;
  }
  std::cerr << "next: trainmon show " << shell_word(run);
  if (!found.series.name.empty()) std::cerr << " --name " << shell_word(found.series.name);
  std::cerr << " --steps " << from << ":" << row.step;
  if (row.restart < newest_restart) std::cerr << " --all-restarts";
  std::cerr << "\n";
}

void run_first_bad(const Selection& selection, Context& context) {
  const ReadOptions options = read_options(selection);
  const FirstBadOfRun answer = first_bad(selection.run, options);
  say_of_run(answer.run, answer.rows, options, context);
  if (options.merged) say_partial(answer.partial);
  const std::optional<FirstBad>& found = answer.found;
  // A finding stands, whatever else may be missing.
  if (found) context.exit_code = kFindings;
  if (context.json) {
    if (!found) return print_json(nullptr);
    Json out = json_row(found->row, found->series);
    out["ranks"] = found->ranks;
    out["came_from"] = found->came_from;
    out["why"] = found->why;
    out["module"] = found->module;
    out["changes"] = found->changes;
    out["follows_gap"] = found->follows_gap;
    out["restarts"] = Json::array();
    for (const FirstBad::OfRestart& one : found->restarts) {
      out["restarts"].push_back(json_row(one.row, one.series));
    }
    return print_json(out);
  }
  const bool is_whole = options.kinds.empty() && options.include.empty() && options.exclude.empty();
  if (found) return print_text(*found, answer.run, selection.run, context, is_whole);
  std::cout << "no NaN and no infinity in " << grouped(answer.rows) << " rows";
  if (const int newest = answer.run.newest_restart; newest > 0) {
    std::cout << " of restarts 0 to " << newest;
  }
  std::cout << "\n";
  if (is_whole) print_bad_scalar(answer.run, nullptr);
  print_failed_check(answer.run, selection.run, false);
  for (const std::string& sentence : answer.run.skipped) std::cout << "  " << sentence << "\n";
  for (const std::string& sentence : answer.run.killed) std::cout << "  " << sentence << "\n";
}

}  // namespace

void add_first_bad(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("first-bad", "the first NaN or infinity of a run");
  const auto selection = std::make_shared<Selection>();
  add_selection(*command, *selection);
  command->footer(R"(First by step, then in the order of a step: weights, forward, backward, reduced
gradients, optimizer state, updated weights. Gradients of steps that a loss
scaler skipped count only when nothing else is bad. All restarts are looked at.
Where most gradients of a backward, or the logged loss, are bad, it is said that
the fault came from the forward. A logged loss (a scalar with "loss" in its
name) counts where no row of its step is bad. Values of the optimizer's groups
that changed in the ten steps before are told. A step check that failed is
named and leaves the exit code alone: diagnose has one for it. So does another
scalar that is not finite, for it may be meant. Exit code 1 when
found, 3 when nothing was found in a record that is not complete. A killed start
that a newer one followed is named and leaves the exit code alone.

Examples:
  trainmon first-bad runs/a
  trainmon first-bad runs/a --kind weights --json)");
  command->callback([selection, &context] { run_first_bad(*selection, context); });
}

}  // namespace trainmon::cli
