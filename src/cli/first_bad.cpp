// trainmon first-bad RUN: which rank, which tensor, which step went wrong first.
#include <iostream>
#include <memory>

#include "base/text.h"
#include "cli/output.h"
#include "cli/select.h"

namespace trainmon::cli {
namespace {

std::string moment_text(std::string_view kind) {
  if (kind == kind::kParamOrigin) return "weight before the step";
  if (kind == kind::kParamUpdated) return "weight after the step";
  if (kind == kind::kActv) return "activation, forward";
  if (kind == kind::kActvGrad) return "gradient of an activation, backward";
  if (kind == kind::kGradUnreduced) return "gradient before reduction, backward";
  if (kind == kind::kGradReduced) return "gradient as the optimizer sees it, before the step";
  if (kind == kind::kCc) return "collective";
  if (kind == kind::kMgDirection) return "momentum against gradient";
  return "optimizer state, after the step";
}

void print_text(const FirstBad& found, const std::string& run, const Context& context) {
  const ReadRow& row = found.row;
  const RowState& state = row.state;
  const std::string where = row.rank < 0 ? "merged over ranks" : "rank " + std::to_string(row.rank);
  std::cout << red(context, "first bad: step " + std::to_string(row.step) + ", " + where + ", " +
                                tensor_text(found.series))
            << "\n";
  std::cout << "  kind      " << printable(found.series.kind) << " ("
            << moment_text(found.series.kind) << ")\n";
  std::cout << "  values    " << grouped(state.nans) << " NaN, " << grouped(state.pos_infs)
            << " +Inf, " << grouped(state.neg_infs) << " -Inf of " << grouped(state.count)
            << " elements (" << dtype_name(found.series.dtype) << ")\n";
  if (found.ranks.size() > 1) {
    std::cout << "  ranks     " << ranks_text(found.ranks) << " are bad at this place\n";
  }
  std::cout << "  place     attempt " << row.attempt << ", micro step " << row.micro_step
            << ", call " << row.call << ", restart " << row.restart << ", seq " << row.seq << "\n";
  if (row.fate == Fate::skipped) {
    std::cout << "  note      the step was skipped (loss scale " << number_text(row.loss_scale)
              << "); nothing outside skipped gradients is bad\n";
  }
  if (context.quiet) return;
  std::cerr << "next: trainmon show " << printable(run);
  if (!found.series.name.empty()) std::cerr << " --name " << printable(found.series.name);
  std::cerr << " --steps " << std::max<std::int64_t>(0, row.step - 3) << ":" << row.step << "\n";
}

void run_first_bad(const Selection& selection, Context& context) {
  const RunRows rows = read_selected(selection, context);
  const std::optional<FirstBad> found = first_bad(rows);
  if (found && context.exit_code == kOk) context.exit_code = kFindings;
  if (context.json) {
    if (!found) return print_json(nullptr);
    Json out = json_row(found->row, found->series);
    out["ranks"] = found->ranks;
    return print_json(out);
  }
  if (found) return print_text(*found, selection.run, context);
  std::cout << "no NaN and no infinity in " << grouped(static_cast<std::int64_t>(rows.rows.size()))
            << " rows\n";
}

}  // namespace

void add_first_bad(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("first-bad", "the first NaN or infinity of a run");
  const auto selection = std::make_shared<Selection>();
  add_selection(*command, *selection);
  command->footer(R"(First by step, then in the order of a step: weights, forward, backward, reduced
gradients, optimizer state, updated weights. Gradients of steps that a loss
scaler skipped count only when nothing else is bad. Exit code 1 when found.

Examples:
  trainmon first-bad runs/a
  trainmon first-bad runs/a --kind weights --json)");
  command->callback([selection, &context] { run_first_bad(*selection, context); });
}

}  // namespace trainmon::cli
