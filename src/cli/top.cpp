// trainmon top RUN: the tensors with the largest or smallest value of a statistic.
#include "answers/top.h"

#include <iostream>
#include <memory>

#include "base/text.h"
#include "cli/output.h"
#include "cli/select.h"

namespace trainmon::cli {
namespace {

struct TopOptions {
  Selection selection;
  std::string stat = "norm";
  std::size_t count = 10;
  bool smallest = false;
};

void print_text(const TopOfRun& found, const TopOptions& options, const Context& context) {
  TextTable table({{options.stat},
                   {"step"},
                   {"rank"},
                   {"kind", TextTable::Align::left},
                   {"tensor", TextTable::Align::left, true}});
  for (const Ranked& one : found.ranked) {
    const Series& series = found.run.series[one.row.series];
    table.add({short_number(one.value), std::to_string(one.row.step),
               one.row.rank < 0 ? "*" : std::to_string(one.row.rank), printable(series.kind),
               tensor_text(series)},
              one.row.state.non_finite());
  }
  table.print(context);
  if (context.quiet) return;
  std::cerr << (options.smallest ? "smallest " : "largest ") << options.stat << " of "
            << grouped(found.tensors) << " tensors in " << grouped(found.rows) << " rows\n";
}

void run_top(const TopOptions& options, Context& context) {
  const Stat stat = checked_stat(options.stat);
  const ReadOptions selected = read_options(options.selection);
  const TopOfRun found =
      top(options.selection.run, selected, stat, options.count, options.smallest);
  say_of_run(found.run, found.rows, selected, context);
  if (selected.merged) say_partial(found.partial);
  if (!context.json) return print_text(found, options, context);
  Json out = Json::array();
  for (const Ranked& one : found.ranked) {
    out.push_back(json_row(one.row, found.run.series[one.row.series]));
  }
  print_json(out);
}

}  // namespace

void add_top(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("top", "the tensors with the largest values");
  const auto options = std::make_shared<TopOptions>();
  add_selection(*command, options->selection);
  command->add_option("--stat", options->stat, "statistic to rank by")->capture_default_str();
  command->add_option("--count", options->count, "how many tensors")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  command->add_flag("--smallest", options->smallest, "smallest instead of largest values");
  command->footer(R"(Each tensor appears once, at the row where it has its extreme value; NaN comes
first, the earliest leading; tensors of integers come last.

Examples:
  trainmon top runs/a
  trainmon top runs/a --stat absmax --kind actv --steps 100:
  trainmon top runs/a --stat norm --kind grads --smallest --count 5)");
  command->callback([options, &context] { run_top(*options, context); });
}

}  // namespace trainmon::cli
