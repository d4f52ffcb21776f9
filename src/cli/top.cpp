// trainmon top RUN: the tensors that left their own history furthest, or those with the largest or
// smallest value of a statistic.
#include "answers/top.h"

#include <cmath>
#include <iostream>
#include <memory>
#include <stdexcept>

#include "base/text.h"
#include "cli/output.h"
#include "cli/select.h"
#include "read/bad_place.h"

namespace trainmon::cli {
namespace {

enum class By { history, size };

struct TopOptions {
  Selection selection;
  std::string by = "history";
  std::string stat = "norm";
  std::size_t count = 10;
  bool smallest = false;
};

std::string score_text(double score) {
  return std::isinf(score) ? "not finite" : short_number(score);
}

void print_text(const TopOfRun& found, const TopOptions& options, By by, const Context& context) {
  std::vector<TextTable::Column> columns = {{options.stat},
                                            {"step"},
                                            {"rank"},
                                            {"kind", TextTable::Align::left},
                                            {"tensor", TextTable::Align::left, true}};
  if (by == By::history) columns.insert(columns.begin(), {{"unusual"}, {"before"}});
  TextTable table(columns);
  for (const Ranked& one : found.ranked) {
    const Series& series = found.run.series[one.row.series];
    std::vector<std::string> cells = {short_number(one.value), std::to_string(one.row.step),
                                      one.row.rank < 0 ? "*" : std::to_string(one.row.rank),
                                      printable(series.kind), tensor_text(series)};
    if (by == By::history) {
      cells.insert(cells.begin(), {score_text(one.score), short_number(one.usual)});
    }
    table.add(std::move(cells), is_bad(one.row));
  }
  table.print(context);
  if (context.quiet) return;
  std::cerr << (by == By::history  ? "most unusual "
                : options.smallest ? "smallest "
                                   : "largest ")
            << options.stat << " of " << grouped(found.tensors) << " tensors in "
            << grouped(found.rows) << " rows\n";
}

// What no history tells; nothing where all tensors have one.
void say_unranked(const TopOfRun& found) {
  if (found.unranked == 0) return;
  std::cerr << grouped(found.unranked) << (found.unranked == 1 ? " tensor has" : " tensors have")
            << " no history: fewer than nine steps, or integers; --by size ranks all\n";
}

void run_top(const TopOptions& options, Context& context) {
  const By by = options.by == "size" ? By::size : By::history;
  if (by == By::history && options.smallest) {
    throw std::invalid_argument("--smallest is for --by size");
  }
  const Stat stat = checked_stat(options.stat);
  const ReadOptions selected = read_options(options.selection);
  const std::string& run = options.selection.run;
  const TopOfRun found = by == By::history
                             ? most_unusual(run, selected, stat, options.count)
                             : top(run, selected, stat, options.count, options.smallest);
  say_of_run(found.run, found.rows, selected, context);
  if (selected.merged) say_partial(found.partial);
  if (!context.quiet) say_unranked(found);
  if (!context.json) return print_text(found, options, by, context);
  Json out = Json::array();
  for (const Ranked& one : found.ranked) {
    Json row = json_row(one.row, found.run.series[one.row.series]);
    if (by == By::history) {
      row["unusual"] = json_number(one.score);
      row["before"] = json_number(one.usual);
    }
    out.push_back(std::move(row));
  }
  print_json(out);
}

}  // namespace

void add_top(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("top", "tensors that left their own history");
  const auto options = std::make_shared<TopOptions>();
  add_selection(*command, options->selection);
  command->add_option("--by", options->by, "how unusual in its own history, or size")
      ->capture_default_str()
      ->check(CLI::IsMember({"history", "size"}));
  command->add_option("--stat", options->stat, "statistic to rank by")->capture_default_str();
  command->add_option("--count", options->count, "how many tensors")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  command->add_flag("--smallest", options->smallest, "smallest instead of largest, --by size");
  command->footer(
      R"(Each tensor appears once, at its most unusual row or, by size, at its extreme
value. "unusual" is the distance from the median of the up to 16 steps before
("before"), in robust standard deviations of log10. Up to about 20 is common.
What is not finite comes first, the earliest leading. Integers, and tensors with
fewer than nine steps, have no history; by size, integers come last.

Examples:
  trainmon top runs/a
  trainmon top runs/a --stat absmax --kind actv --steps 100:
  trainmon top runs/a --by size --kind grads --smallest --count 5)");
  command->callback([options, &context] { run_top(*options, context); });
}

}  // namespace trainmon::cli
