// trainmon compare RUN_A RUN_B: the first place where two runs differ by more than rounding.
#include "compare/compare.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <stdexcept>

#include "base/text.h"
#include "cli/output.h"
#include "cli/python.h"
#include "cli/select.h"

namespace trainmon::cli {
namespace {

struct CompareArguments {
  Selection selection;  // its run is A
  std::string b;
  std::string null;
  std::string plot;
  CLI::Option* plot_option = nullptr;
  bool has_plot() const { return plot_option != nullptr && plot_option->count() > 0; }
  double factor = 1.0;
  std::size_t count = 10;
};

std::string rank_text(std::int32_t rank) {
  return rank < 0 ? "*" : std::to_string(rank);
}

void print_table(const CompareReport& report, const Context& context) {
  TextTable table({{"step"},
                   {"rank"},
                   {"kind", TextTable::Align::left},
                   {"tensor", TextTable::Align::left, true},
                   {"stat", TextTable::Align::left},
                   {"A"},
                   {"B"},
                   {"difference"},
                   {"of tolerance"}});
  for (const Difference& one : report.worst) {
    table.add({std::to_string(one.step), rank_text(one.rank), printable(one.kind), tensor_text(one),
               one.stat, short_number(one.a), short_number(one.b), number_text(one.difference, 2),
               number_text(one.ratio, 3)},
              one.ratio > 1.0);
  }
  table.print(context);
}

// At most some of a list that may be long.
void say_list(const char* what, const std::vector<std::string>& list) {
  if (list.empty()) return;
  constexpr std::size_t kShown = 5;
  std::cerr << "trainmon: " << what << ":\n";
  for (std::size_t i = 0; i < list.size() && i < kShown; ++i) {
    std::cerr << "  " << printable(list[i]) << "\n";
  }
  if (list.size() > kShown) {
    std::cerr << "  and " << grouped(static_cast<std::int64_t>(list.size() - kShown))
              << " more; --json lists all\n";
  }
}

void say_rest(const CompareReport& report) {
  say_list("tensors of A that B lacks", report.a.only_here);
  say_list("tensors of B that A lacks", report.b.only_here);
  say_list("rows of A that B lacks", report.a.rows_only_here);
  say_list("rows of B that A lacks", report.b.rows_only_here);
  say_list("not compared, for sizes differ", report.different_size);
  say_list("types differ", report.different_dtype);
  const auto say_unmatched = [](const char* which, const ComparedSide& side) {
    if (side.unmatched == 0) return;
    std::cerr << "trainmon: " << grouped(side.unmatched) << " of " << grouped(side.rows)
              << " rows of " << which << " (steps " << side.first_step << " to " << side.last_step
              << ") have no counterpart\n";
  };
  say_unmatched("A", report.a);
  say_unmatched("B", report.b);
  if (report.null) say_unmatched("the repeated run", *report.null);
  for (const std::string& remark : report.remarks) std::cerr << "trainmon: " << remark << "\n";
}

void print_declared(const CompareReport& report) {
  constexpr std::size_t kShown = 10;
  for (std::size_t i = 0; i < report.declared.size() && i < kShown; ++i) {
    std::cout << declared_text(report.declared[i]) << "\n";
  }
  if (report.declared.size() > kShown) {
    std::cout << "and " << report.declared.size() - kShown
              << " more values of the optimizers' groups differ; --json lists all\n";
  }
}

void print_text(const CompareReport& report, const Context& context) {
  print_declared(report);
  if (report.first) {
    std::cout << red(context, "first difference: " + place_text(*report.first)) << "\n  "
              << size_text(*report.first) << "\n  ";
  }
  std::cout << extent_text(report) << "\n";
  // Ten lines of zeros say nothing.
  if (!report.worst.empty() && report.worst[0].ratio > 0.0) print_table(report, context);
  if (!context.quiet) say_rest(report);
}

// `python -m trainmon.comparison FILE` draws the report that it reads.
void draw(const std::string& report, const std::string& file) {
  int ends[2];
  if (::pipe(ends) != 0) throw std::runtime_error("--plot: no pipe to Python");
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[0], 0);
    ::close(ends[0]);
    ::close(ends[1]);
    ::dup2(2, 1);  // the answer alone is on stdout
    try {
      run_python("trainmon.comparison", {file});
    } catch (const std::exception& error) {
      std::cerr << "trainmon: " << error.what() << "\n";
    }
    ::_exit(kUsage);
  }
  ::close(ends[0]);
  std::FILE* to = ::fdopen(ends[1], "w");
  std::fwrite(report.data(), 1, report.size(), to);
  std::fclose(to);
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child || status != 0) {
    throw std::runtime_error("--plot: there is no picture");
  }
}

// Before the work, not after it.
void check_picture(const std::string& file) {
  const std::filesystem::path path = file, folder = path.parent_path();
  const std::string kind = path.extension().native();
  if (kind != ".png" && kind != ".svg" && kind != ".pdf") {
    throw std::invalid_argument("--plot: '" + printable(file) +
                                "' ends in none of .png, .svg, .pdf");
  }
  std::error_code error;
  if (!folder.empty() && !std::filesystem::is_directory(folder, error)) {
    throw std::invalid_argument("--plot: there is no directory " + printable(folder.native()));
  }
  if (std::filesystem::is_directory(path, error)) {
    throw std::invalid_argument("--plot: " + printable(file) + " is a directory");
  }
}

void run_compare(const CompareArguments& given, Context& context) {
  if (given.has_plot()) check_picture(given.plot);
  for (const int rank : given.selection.ranks) {
    if (rank >= 0) continue;
    throw std::invalid_argument("--rank: " + std::to_string(rank) +
                                " is no rank; ranks count from 0");
  }
  CompareOptions options;
  options.a = given.selection.run;
  options.b = given.b;
  if (!given.null.empty()) options.null = given.null;
  options.select = read_options(given.selection);
  options.factor = given.factor;
  options.worst = given.count;
  const CompareReport report = compare(options);
  for (const ComparedSide* side : {&report.a, &report.b}) {
    if (!side->not_used.empty()) context.exit_code = kPartial;
    say_list(side == &report.a ? "not used of A" : "not used of B", side->not_used);
  }
  if (report.null && !report.null->not_used.empty()) {
    context.exit_code = kPartial;
    say_list("not used of the repeated run", report.null->not_used);
  }
  // A finding stands, whatever else may be missing.
  if (report.first) context.exit_code = kFindings;
  const std::string json =
      context.json || !given.plot.empty() ? compare_json(report) : std::string();
  if (context.json) {
    std::cout << json << "\n";
  } else {
    print_text(report, context);
  }
  std::cout.flush();
  if (given.plot.empty()) return;
  try {
    draw(json, given.plot);
  } catch (const std::exception& error) {
    if (!report.first) throw;
    std::cerr << "trainmon: " << error.what() << "\n";  // the finding stands
  }
}

}  // namespace

void add_compare(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("compare", "where two runs begin to differ");
  const auto given = std::make_shared<CompareArguments>();
  add_selection(*command, given->selection);
  command->get_option("RUN")->description("the run that is taken to be right (A)");
  command->add_option("RUN_B", given->b, "the run to look at (B)")->required();
  // Shards are merged in any case.
  command->remove_option(command->get_option("--merged"));
  command->remove_option(command->get_option("--all-restarts"));
  command->add_option("--null", given->null, "a repeat of A, whose noise sets the tolerances");
  command->add_option("--tolerance", given->factor, "factor on every tolerance")
      ->capture_default_str();
  command->add_option("--count,--worst", given->count, "lines of the table of the worst tensors")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  given->plot_option =
      command->add_option("--plot", given->plot, "picture: .png, .svg or .pdf (needs matplotlib)");
  command->footer(R"(Runs are directories of trainmon (log, csv, sqlite) or of msprobe's monitor.
Tensors are matched without module., _orig_mod. and other prefixes of wrappers;
shards are merged first. Every statistic is compared with what rounding may do
in its type (docs/compare.md), or with what it did between A and --null.
The first difference is the first one in the order of execution. Values of the
optimizers that differ (lr, weight_decay, ...) are listed before it.

Exit code 0: no difference. 1: there is one. 2: nothing can be compared.
3: no difference was found, but a run is damaged or incomplete.

Examples:
  trainmon compare runs/gpu runs/npu
  trainmon compare runs/a runs/b --null runs/a_again --json
  trainmon compare runs/a runs/b --kind grads --steps :100 --plot differs.png)");
  command->callback([given, &context] { run_compare(*given, context); });
}

}  // namespace trainmon::cli
