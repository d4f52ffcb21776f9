// trainmon report RUN: one page that opens in a browser.
#include "report/report.h"

#include <iostream>
#include <memory>

#include "base/cancelled.h"
#include "base/text.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/select.h"

namespace trainmon::cli {
namespace {

struct ReportArguments {
  Selection selection;
  std::string other;
  std::string out = "report.html";
  int max_megabytes = static_cast<int>(kReportBytes >> 20);
  bool overwrite = false;
};

void say_written(const Report& report, const std::string& out, bool is_written,
                 const Context& context) {
  const Diagnosis& found = report.diagnosis;
  if (context.json) {
    Json answer;
    answer["output"] = is_written ? Json(out) : Json();
    answer["bytes"] = is_written ? report.html.size() : 0;
    answer["rows"] = report.rows;
    answer["step_width"] = report.step_width;
    answer["left_out_lines"] = report.left_out_lines;
    answer["diagnosis"] = Json::parse(diagnosis_json(found));
    if (report.other_diagnosis) {
      answer["other_diagnosis"] = Json::parse(diagnosis_json(*report.other_diagnosis));
      answer["comparison"] =
          report.comparison ? Json::parse(compare_json(*report.comparison)) : Json();
      answer["not_compared"] = report.not_compared;
    }
    return print_json(answer);
  }
  if (!is_written) {
    std::cerr << "trainmon: " << printable(out)
              << " stays as it was: a report of nothing replaces one only with --overwrite\n";
    return;
  }
  for (const ReportLine& one : report_lines(report)) {
    std::cout << (one.is_wrong ? red(context, one.text) : one.text) << "\n";
  }
  if (context.quiet) return;
  if (report.step_width > 1) {
    std::cerr << "trainmon: " << report.step_width
              << " steps share a column, with their extremes; --max-size makes room for more\n";
  }
  if (report.left_out_lines > 0) {
    std::cerr << "trainmon: left out: " << grouped(report.left_out_lines)
              << (report.left_out_lines == 1 ? " line" : " lines")
              << ", the least unusual; --name chooses, --max-size makes room\n";
  }
  std::cerr << bytes_text(static_cast<double>(report.html.size())) << " written to "
            << printable(out) << "\n";
}

bool has_findings(const Report& made) {
  return made.diagnosis.verdict || (made.other_diagnosis && made.other_diagnosis->verdict) ||
         (made.comparison && made.comparison->first);
}

void run_report(const ReportArguments& given, Context& context) {
  check_report_path(given.out, given.overwrite);
  ReportOptions options;
  options.select = read_options(given.selection);
  if (!given.other.empty()) options.other = given.other;
  options.max_bytes = std::int64_t{given.max_megabytes} << 20;
  Report made;
  try {
    const Interruptible interruptible;
    Progress progress("reporting", context);
    options.progress = [&](std::int64_t done, std::int64_t total) { progress.show(done, total); };
    options.cancelled = [] { return Interruptible::asked(); };
    made = report(given.selection.run, options);
  } catch (const Cancelled& error) {
    std::cerr << "trainmon: " << error.what() << "\n";
    context.exit_code = kInterrupted;
    return;
  }
  const bool is_written =
      given.overwrite || !made.matches_nothing || !std::filesystem::exists(given.out);
  if (is_written) write_report(made, given.out, given.overwrite);
  say_of_run(made.diagnosis.run, made.rows, options.select, context);
  if (made.other_diagnosis) {
    say_of_run(made.other_diagnosis->run, made.rows, options.select, context);
    if (!made.comparison) context.exit_code = kPartial;
  }
  // A finding stands, whatever else may be missing.
  if (has_findings(made)) context.exit_code = kFindings;
  say_written(made, given.out, is_written, context);
}

}  // namespace

void add_report(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("report", "one page about a run or two, for a browser");
  const auto given = std::make_shared<ReportArguments>();
  add_selection(*command, given->selection);
  command->remove_option(command->get_option("--merged"));
  command->remove_option(command->get_option("--all-restarts"));
  command->add_option("RUN_B", given->other, "a second run to compare with the first one");
  command->add_option("-o,--out", given->out, "file to write")->capture_default_str();
  command->add_option("--max-size", given->max_megabytes, "largest size of the page in MiB")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  command->add_flag("--overwrite", given->overwrite, "also replace a file that is not a report");
  command->footer(R"(The page needs no network, no server and no account. It begins with what
`trainmon diagnose` says and what was not seen; pictures of all rows follow. A
report that is there is replaced. In a large run several steps share a column,
which keeps their extremes; the steps around the verdict keep their own. Exit
code 1 for a verdict, 3 without one in a record that is not complete. With
RUN_B the page begins with what `trainmon compare RUN RUN_B` says: exit code 1
for a difference, too, and 3 for runs that have nothing in common.

Examples:
  trainmon report runs/a
  trainmon report runs/a -o a.html --max-size 64
  trainmon report runs/a runs/b -o both.html
  trainmon report runs/a -o grads.html --kind grads --steps 1000:)");
  command->callback([given, &context] { run_report(*given, context); });
}

}  // namespace trainmon::cli
