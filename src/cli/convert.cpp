// trainmon convert: from what a run or msprobe's monitor wrote to other files.
#include "convert/convert.h"

#include <iostream>
#include <memory>
#include <stdexcept>

#include "base/cancelled.h"
#include "base/parallel.h"
#include "base/text.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/python.h"
#include "cli/select.h"

namespace trainmon::cli {
namespace {

struct ConvertArguments {
  Selection selection;
  std::string from = "auto";
  std::string to;
  std::string out;
  std::vector<std::string> stats;
  std::string time_start;
  std::string time_end;
  std::int64_t step_partition = 500;
  bool overwrite = false;
  bool keep_micro_steps = false;
  bool safe_cells = false;
};

void print_report(const ConvertReport& report, const ConvertOptions& options, Context& context) {
  if (context.json) {
    Json out;
    out["output"] = options.to.native();
    out["rows"] = report.rows;
    out["written"] = report.written;
    out["rejected"] = report.rejected;
    out["superseded"] = report.superseded;
    out["left_out"] = report.left_out;
    out["rejections"] = Json::array();
    for (const RejectedRows& one : report.rejections) {
      Json entry;
      entry["file"] = one.file.native();
      entry["line"] = one.line;
      entry["rows"] = one.rows;
      entry["what"] = one.what;
      out["rejections"].push_back(std::move(entry));
    }
    out["remarks"] = report.remarks;
    out["missing_ranks"] = report.missing.ranks;
    out["incomplete"] = report.incomplete;
    print_json(out);
  }
  const bool is_partial = !report.rejections.empty() || !report.missing.ranks.empty();
  if (is_partial) context.exit_code = kPartial;
  constexpr std::size_t kShown = 10;
  for (std::size_t i = 0; i < report.rejections.size() && i < kShown; ++i) {
    const RejectedRows& one = report.rejections[i];
    std::cerr << "trainmon: not converted: " << printable(one.file.native());
    if (one.line > 0) std::cerr << " line " << one.line;
    std::cerr << ": " << printable(one.what) << "\n";
  }
  if (report.rejections.size() > kShown) {
    std::cerr << "trainmon: and "
              << grouped(static_cast<std::int64_t>(report.rejections.size() - kShown))
              << " more; --json lists them\n";
  }
  if (!report.missing.ranks.empty()) {
    std::cerr << "trainmon: " << missing_text(report.missing) << "\n";
  }
  say_incomplete(report.incomplete, context);
  if (context.quiet) return;
  for (const std::string& remark : report.remarks) {
    std::cerr << "trainmon: " << printable(remark) << "\n";
  }
  if (report.rows == 0) {
    std::cerr << "trainmon: no row matches"
              << (report.kinds.empty() ? "" : "; the source has kinds");
    for (const std::string& kind : report.kinds) std::cerr << " " << printable(kind);
    std::cerr << "\n";
  }
  std::cerr << grouped(report.written) << " rows written to " << printable(options.to.native());
  if (report.rejected > 0) std::cerr << ", " << grouped(report.rejected) << " rejected";
  if (report.superseded > 0) {
    std::cerr << ", " << grouped(report.superseded) << " left out: a restart repeated their steps";
  }
  std::cerr << "\n";
}

[[noreturn]] void run_parquet(const ConvertArguments& given, const Context& context) {
  if (given.from != "auto" && given.from != "log") {
    throw std::invalid_argument("--to parquet reads the logs of a run only, not --from " +
                                given.from);
  }
  if (context.json) throw std::invalid_argument("--json: not with --to parquet");
  const ConvertOptions defaults;
  if (!given.time_start.empty() || !given.time_end.empty() ||
      given.step_partition != defaults.step_partition || given.keep_micro_steps) {
    throw std::invalid_argument(
        "--time-start, --time-end, --step-partition, --keep-micro-steps: not with --to parquet");
  }
  std::vector<std::string> arguments = {"--out=" + given.out};
  const auto add = [&](const std::string& flag, const auto& values) {
    for (const auto& value : values) {
      if constexpr (std::is_integral_v<std::decay_t<decltype(value)>>) {
        arguments.push_back(flag + "=" + std::to_string(value));
      } else {
        arguments.push_back(flag + "=" + value);
      }
    }
  };
  add("--kind", given.selection.kinds);
  add("--name", given.selection.names);
  add("--exclude", given.selection.excludes);
  add("--rank", given.selection.ranks);
  add("--stat", given.stats);
  if (!given.selection.steps.empty()) arguments.push_back("--steps=" + given.selection.steps);
  if (given.selection.all_restarts) arguments.emplace_back("--all-restarts");
  if (given.selection.merged) arguments.emplace_back("--merged");
  if (given.selection.threads > 0) add("--threads", std::vector{given.selection.threads});
  if (given.overwrite) arguments.emplace_back("--overwrite");
  if (context.quiet) arguments.emplace_back("--quiet");
  // A name that begins with a dash is no option.
  arguments.insert(arguments.end(), {"--", given.selection.run});
  run_python("trainmon.parquet", arguments);
}

void run_convert(const ConvertArguments& given, Context& context) {
  if (given.safe_cells && given.to != "csv") {
    throw std::invalid_argument("--safe-cells: for --to csv only, not with --to " + given.to);
  }
  if (given.to == "parquet") run_parquet(given, context);
  ConvertOptions options;
  options.from = given.selection.run;
  options.from_format = *source_format(given.from);
  options.to = given.out;
  options.to_format = *target_format(given.to);
  options.select = read_options(given.selection);
  options.stats = given.stats;
  options.time_start = given.time_start;
  options.time_end = given.time_end;
  options.step_partition = given.step_partition;
  options.micro_steps_are_steps = !given.keep_micro_steps;
  options.safe_cells = given.safe_cells;
  options.threads = static_cast<int>(useful_threads(given.selection.threads));
  options.overwrite = given.overwrite;
  ConvertReport report;
  try {
    const Interruptible interruptible;
    Progress progress("converting", context);
    options.progress = [&](std::int64_t done, std::int64_t total) { progress.show(done, total); };
    options.cancelled = [] { return Interruptible::asked(); };
    report = convert(options);
  } catch (const Cancelled& error) {
    std::cerr << "trainmon: " << error.what() << "\n";
    context.exit_code = kInterrupted;
    return;
  }
  print_report(report, options, context);
}

void add_common(CLI::App& command, ConvertArguments& given) {
  add_selection(command, given.selection);
  command.add_option("--stat", given.stats, "statistic (repeatable); all there are without it")
      ->allow_extra_args(false);
  command.add_flag("--overwrite", given.overwrite, "replace what is there");
  command.add_flag("--safe-cells", given.safe_cells, "csv: text never looks like a formula");
}

}  // namespace

void add_convert(CLI::App& app, Context& context) {
  CLI::App* command =
      app.add_subcommand("convert", "other files from those of a run or of msprobe");
  const auto given = std::make_shared<ConvertArguments>();
  add_common(*command, *given);
  command->add_option("-o,--out", given->out, "what to write; must not exist")->required();
  command->add_option("--to", given->to, "format to write")
      ->required()
      ->check(CLI::IsMember(
          {"csv", "jsonl", "sqlite", "tensorboard", "parquet", "msprobe_db", "msprobe_trend"}));
  command->add_option("--from,--format", given->from, "format to read")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "log", "csv", "sqlite", "msprobe_csv"}));
  command->add_option("--time-start", given->time_start,
                      "msprobe_csv: first time, as Dec03_21-34-40");
  command->add_option("--time-end", given->time_end, "msprobe_csv: last time");
  command->add_option("--step-partition", given->step_partition, "msprobe_db: steps per table")
      ->capture_default_str()
      ->check(CLI::Range(10, 10000000));
  command->add_flag("--keep-micro-steps", given->keep_micro_steps,
                    "msprobe_trend: do not count micro steps as steps");
  command->footer(R"(Formats written: csv, jsonl, tensorboard (directories), parquet (a directory;
needs pyarrow), sqlite, and msprobe's databases msprobe_db (tables
metric_*_step_*) and msprobe_trend (table trend_data). The output appears under
its name when it is complete. Rows that cannot be used are listed by file and
line. Exit code 3: there were such rows, or the record is incomplete.

Examples:
  trainmon convert runs/a --to sqlite -o a.db
  trainmon convert runs/a --to tensorboard -o tb --kind grads --stat norm
  trainmon convert monitor_output --to msprobe_db -o metrics.db --threads 8
  trainmon convert runs/a --to parquet -o a.parquet --merged)");
  command->callback([given, &context] { run_convert(*given, context); });
}

void add_merge(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("merge", "one row per tensor from those of all ranks");
  const auto given = std::make_shared<ConvertArguments>();
  add_common(*command, *given);
  command->remove_option(command->get_option("--merged"));  // always
  given->from = "log";
  given->to = "csv";
  command->add_option("-o,--out", given->out, "what to write; must not exist")->required();
  command->add_option("--to", given->to, "format to write")
      ->capture_default_str()
      ->check(CLI::IsMember({"csv", "jsonl", "sqlite", "tensorboard", "parquet"}));
  command->footer(
      R"(Shards of one tensor are merged exactly. Values that are the same on every rank
are taken once. Both get rank -1, and the rest stays per rank. A merged row that
lacks elements has the flag 8 (partial).

Examples:
  trainmon merge runs/a -o a_merged
  trainmon merge runs/a --kind grads --to sqlite -o a_merged.db)");
  command->callback([given, &context] {
    given->selection.merged = true;
    run_convert(*given, context);
  });
}

}  // namespace trainmon::cli
