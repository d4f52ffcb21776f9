// trainmon show RUN: rows as a table.
#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <tuple>

#include "base/text.h"
#include "cli/output.h"
#include "cli/select.h"
#include "read/bad_place.h"
#include "sources/source.h"

namespace trainmon::cli {
namespace {

struct ShowOptions {
  Selection selection;
  std::vector<std::string> stats;
  std::size_t count = 50;
  bool declared = false;
  bool all_attempts = false;
};

constexpr std::array kDefaultStats = {Stat::norm, Stat::min, Stat::max, Stat::nans};

// Whether any row shown needs this column, so that the usual case stays narrow.
bool any(const std::vector<ReadRow>& rows, std::size_t count, const auto& is_so) {
  return std::any_of(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(count), is_so);
}

// Takes out the rows of backwards that no step followed and a later attempt at the same step
// replaced. The reader of a listing counts one row per step. Says how many there were.
void leave_out_attempts(RunRows& rows, const Context& context) {
  const auto place = [&rows](const ReadRow& row) {
    return std::tuple(row.restart, row.rank, rows.series[row.series].optimizer, row.step);
  };
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t, std::int64_t>, std::int32_t> last;
  for (const ReadRow& row : rows.rows) {
    std::int32_t& attempt = last[place(row)];
    attempt = std::max(attempt, row.attempt);
  }
  std::int64_t bad = 0;
  const auto left_out = std::erase_if(rows.rows, [&](const ReadRow& row) {
    const bool is_earlier = row.attempt < last[place(row)];
    bad += static_cast<std::int64_t>(is_earlier && is_bad(row));
    return is_earlier;
  });
  if (left_out == 0 || context.quiet) return;
  std::cerr << "trainmon: left out: " << grouped(static_cast<std::int64_t>(left_out))
            << (left_out == 1 ? " row" : " rows") << " of backwards that no step followed, "
            << grouped(bad) << " with a NaN or an infinity; --all-attempts shows them\n";
}

void print_text(const RunRows& rows, std::size_t count, const std::vector<Stat>& stats,
                const Context& context) {
  const auto& list = rows.rows;
  const bool has_restart = any(list, count, [](const ReadRow& r) { return r.restart != 0; });
  const bool has_attempt = any(list, count, [](const ReadRow& r) { return r.attempt != 0; });
  const bool has_micro = any(list, count, [](const ReadRow& r) { return r.micro_step != 0; });
  const bool has_call = any(list, count, [](const ReadRow& r) { return r.call != 0; });
  std::vector<TextTable::Column> columns;
  if (has_restart) columns.push_back({"restart"});
  columns.push_back({"step"});
  if (has_attempt) columns.push_back({"attempt"});
  if (has_micro) columns.push_back({"micro"});
  if (has_call) columns.push_back({"call"});
  columns.push_back({"rank"});
  columns.push_back({"kind", TextTable::Align::left});
  columns.push_back({"tensor", TextTable::Align::left, true});
  for (const Stat stat : stats) columns.push_back({std::string(stat_name(stat))});
  TextTable table(std::move(columns));
  for (std::size_t i = 0; i < count; ++i) {
    const ReadRow& row = list[i];
    const Series& series = rows.series[row.series];
    std::vector<std::string> cells;
    if (has_restart) cells.push_back(std::to_string(row.restart));
    cells.push_back(std::to_string(row.step));
    if (has_attempt) cells.push_back(std::to_string(row.attempt));
    if (has_micro) cells.push_back(std::to_string(row.micro_step));
    if (has_call) cells.push_back(std::to_string(row.call));
    cells.push_back(row.rank < 0 ? "*" : std::to_string(row.rank));
    cells.push_back(printable(series.kind));
    cells.push_back(tensor_text(series));
    const bool is_ready = (row.flags & flag::kNotReady) == 0;
    for (const Stat stat : stats) {
      const bool is_known = is_ready && is_told(stat, row.state);
      const bool is_estimate = row.state.is_estimate() && stat != Stat::count;
      cells.push_back(!is_known ? "?"
                                : (is_estimate ? "~" : "") + short_number(derive(stat, row.state)));
    }
    table.add(std::move(cells), is_bad(row));
  }
  table.print(context);
  if (has_attempt) say_term(context, "attempt: the try at this step; those before were skipped");
  if (has_micro) say_term(context, "micro: the backward within the step");
  const auto is_estimate = [](const ReadRow& r) { return r.state.is_estimate(); };
  if (any(list, count, is_estimate)) {
    say_term(context, "~: estimated from a sample of blocks, which says nothing of what is ?");
  }
  if (has_call) say_term(context, "call: the call of the module within one forward");
}

void say_cut(std::size_t shown, std::size_t all, const Context& context) {
  if (shown >= all || context.quiet) return;
  std::cerr << "the first " << grouped(static_cast<std::int64_t>(shown)) << " of "
            << grouped(static_cast<std::int64_t>(all)) << " rows; --count 0 shows all\n";
}

void run_show(const ShowOptions& options, Context& context) {
  std::vector<Stat> stats;
  for (const std::string& name : options.stats) stats.push_back(checked_stat(name));
  if (stats.empty()) stats.assign(kDefaultStats.begin(), kDefaultStats.end());
  RunRows rows = read_selected(options.selection, context);
  if (!options.all_attempts) leave_out_attempts(rows, context);
  const std::size_t count =
      options.count == 0 ? rows.rows.size() : std::min(options.count, rows.rows.size());
  if (context.json) {
    Json out = Json::array();
    for (std::size_t i = 0; i < count; ++i) {
      out.push_back(json_row(rows.rows[i], rows.series[rows.rows[i].series]));
    }
    print_json(out);
  } else {
    print_text(rows, count, stats, context);
  }
  say_cut(count, rows.rows.size(), context);
}

std::string declared_text(const DeclaredValue& value) {
  if (value.type == DeclaredValue::Type::unknown) return "?";
  return value.type == DeclaredValue::Type::text ? printable(value.text)
                                                 : number_text(value.number);
}

// What the groups of optimizers said, where it changed.
void show_declared(const ShowOptions& options, Context& context) {
  const ReadOptions select = read_options(options.selection);
  const RunRows run = read_beside_rows(options.selection.run, select);
  say_of_run(run, static_cast<std::int64_t>(run.declared.size()), select, context);
  const std::size_t count =
      options.count == 0 ? run.declared.size() : std::min(options.count, run.declared.size());
  Json out = Json::array();
  TextTable table({{"restart"},
                   {"step"},
                   {"rank"},
                   {"optimizer"},
                   {"group"},
                   {"name", TextTable::Align::left},
                   {"value", TextTable::Align::left}});
  for (std::size_t i = 0; i < count; ++i) {
    const ReadDeclared& d = run.declared[i];
    out.push_back({{"restart", d.restart},
                   {"rank", d.rank},
                   {"step", d.step},
                   {"optimizer", d.optimizer},
                   {"param_group", d.group},
                   {"name", printable(d.value.name)},
                   {"value", nullptr}});
    if (d.value.type == DeclaredValue::Type::number) {
      out.back()["value"] = json_number(d.value.number);
    } else if (d.value.type == DeclaredValue::Type::text) {
      out.back()["value"] = printable(d.value.text);
    }
    table.add({std::to_string(d.restart), std::to_string(d.step), std::to_string(d.rank),
               std::to_string(d.optimizer), std::to_string(d.group), printable(d.value.name),
               declared_text(d.value)},
              false);
  }
  if (context.json) {
    print_json(out);
  } else {
    table.print(context);
  }
  say_cut(count, run.declared.size(), context);
}

}  // namespace

void add_show(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("show", "rows of a run as a table");
  const auto options = std::make_shared<ShowOptions>();
  add_selection(*command, options->selection);
  command->add_option("--stat,--stats", options->stats, "statistic to show (repeatable)")
      ->allow_extra_args(false);
  command->add_option("--count", options->count, "rows to show, 0 for all")->capture_default_str();
  command->add_flag("--declared", options->declared, "lr, weight_decay, ... where they change");
  command->add_flag("--all-attempts", options->all_attempts,
                    "backwards that no step followed, too");
  command->footer(
      R"(--declared also reads what the sinks csv and sqlite or `trainmon convert` wrote.
Rows come in the order restart, step, attempt, rank, seq. A row with a NaN or an
infinity is red on a terminal. With --json every statistic is given.

Words: "attempt" counts tries at one step (a loss scaler skips some), "micro"
the backwards within a step. "call" counts calls of a module in one forward.
"seq" is the order of execution on a rank, "chunk" the part of a model in parts.

Examples:
  trainmon show runs/a --declared
  trainmon show runs/a --steps 120
  trainmon show runs/a --kind grads --name layers.1 --stat norm --stat std
  trainmon show runs/a --merged --kind weights --steps 0:3)");
  command->callback([options, &context] {
    options->declared ? show_declared(*options, context) : run_show(*options, context);
  });
}

}  // namespace trainmon::cli
