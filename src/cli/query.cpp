// trainmon query RUN "SQL": SQLite's engine over the logs.
#include "answers/query.h"

#include <iostream>
#include <memory>

#include "base/formula.h"
#include "base/text.h"
#include "cli/output.h"
#include "cli/select.h"

namespace trainmon::cli {
namespace {

struct QueryArguments {
  std::string run;
  std::string sql;
  bool csv = false;
  bool safe_cells = false;
  QueryOptions options{.all_restarts = false, .timeout_seconds = 3600.0};
};

std::string cell_text(const SqlValue& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return std::to_string(*whole);
  if (const auto* real = std::get_if<double>(&value)) return short_number(*real);
  if (const auto* text = std::get_if<std::string>(&value)) return printable(*text);
  return "NULL";
}

Json cell_json(const SqlValue& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return *whole;
  if (const auto* real = std::get_if<double>(&value)) return json_number(*real);
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  return nullptr;
}

// As docs/formats.md has it for the sink csv: numbers exact, NULL an empty field.
std::string csv_field(const SqlValue& value, bool safe) {
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return std::to_string(*whole);
  if (const auto* real = std::get_if<double>(&value)) return number_text(*real);
  const auto* text = std::get_if<std::string>(&value);
  if (text == nullptr) return "";
  const std::string cell = (safe && begins_formula(*text) ? "'" : "") + *text;
  if (cell.find_first_of(",\"\r\n") == std::string::npos) return cell;
  std::string quoted = "\"";
  for (const char c : cell) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

// Two columns of one name must not hide each other in an object.
std::vector<std::string> distinct(std::vector<std::string> names) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string name = names[i];
    for (int n = 2; std::find(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(i),
                              names[i]) != names.begin() + static_cast<std::ptrdiff_t>(i);
         ++n) {
      names[i] = name + "_" + std::to_string(n);
    }
  }
  return names;
}

void print_csv_line(const auto& cells, const auto& text_of) {
  std::string line;
  for (const auto& cell : cells)
    line += (line.empty() && &cell == &cells.front() ? "" : ",") + text_of(cell);
  if (line.empty()) line = "\"\"";  // an empty line would be no record
  std::cout << line << "\n";
}

QueryAccount print_answer(const QueryArguments& arguments, const Context& context) {
  std::vector<std::string> names;
  std::vector<std::vector<SqlValue>> rows;  // of a table; JSON and CSV are written as they come
  constexpr std::size_t kShown = 10'000;
  std::int64_t count = 0;
  const auto field = [&](const SqlValue& value) { return csv_field(value, arguments.safe_cells); };
  QueryOutput output;
  output.columns = [&](const std::vector<std::string>& columns) {
    names = columns;
    if (arguments.csv) {
      print_csv_line(columns, field);
    }
    names = distinct(std::move(names));
  };
  output.row = [&](const std::vector<SqlValue>& cells) {
    ++count;
    if (arguments.csv) {
      print_csv_line(cells, field);
    } else if (context.json) {
      Json object = Json::object();
      for (std::size_t i = 0; i < cells.size(); ++i) object[names[i]] = cell_json(cells[i]);
      std::cout << (count == 1 ? "[\n " : ",\n ")
                << object.dump(-1, ' ', false, Json::error_handler_t::replace);
    } else if (rows.size() < kShown) {
      rows.push_back(cells);
    }
  };
  const QueryAccount account = query(arguments.run, arguments.sql, output, arguments.options);
  if (arguments.csv) return account;
  if (context.json) {
    std::cout << (count == 0 ? "[]\n" : "\n]\n");
    return account;
  }
  std::vector<TextTable::Column> columns;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const bool has_text = std::any_of(rows.begin(), rows.end(), [i](const auto& row) {
      return std::holds_alternative<std::string>(row[i]);
    });
    columns.push_back({printable(names[i]),
                       has_text ? TextTable::Align::left : TextTable::Align::right, has_text});
  }
  TextTable table(std::move(columns));
  for (const std::vector<SqlValue>& row : rows) {
    std::vector<std::string> cells;
    for (const SqlValue& value : row) cells.push_back(cell_text(value));
    table.add(std::move(cells));
  }
  table.print(context);
  if (!context.quiet) {
    if (count > std::ssize(rows)) {
      std::cerr << "the first " << grouped(std::ssize(rows)) << " of " << grouped(count)
                << " rows; --csv and --json give all\n";
    } else {
      std::cerr << grouped(count) << (count == 1 ? " row\n" : " rows\n");
    }
  }
  return account;
}

void run_query(const QueryArguments& arguments, Context& context) {
  const QueryAccount account = print_answer(arguments, context);
  say_earlier(account.earlier);
  say_incomplete(account.incomplete, context);
  if (!account.missing.ranks.empty()) {
    context.exit_code = kPartial;
    std::cerr << "trainmon: " << missing_text(account.missing) << "\n";
  }
  for (const Damage& damage : account.damage) {
    context.exit_code = kPartial;
    say_not_used(damage);
  }
}

}  // namespace

void add_query(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("query", "a SELECT of SQL over the rows of a run");
  const auto arguments = std::make_shared<QueryArguments>();
  command->add_option("RUN", arguments->run, "run directory, or a stats.db")->required();
  command->add_option("SQL", arguments->sql, "one SELECT, in SQLite's dialect")->required();
  command->add_flag("--csv", arguments->csv, "CSV on stdout, numbers exact");
  command->add_flag("--safe-cells", arguments->safe_cells,
                    "with --csv: text never looks like a formula");
  command
      ->add_option("--timeout", arguments->options.timeout_seconds,
                   "seconds that the statement may take; 0: any")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--all-restarts", arguments->options.all_restarts,
                    "steps that were repeated, too");
  command->footer(R"(Tables:
  stats   restart rank kind chunk name element optimizer step attempt micro_step
          call seq flags window accum fate loss_scale dtype replication shape,
          and every statistic (docs/statistics.md)
  logged  restart rank step name value: what mon.log was given
  declared  restart rank step optimizer param_group name value type window: lr,
          weight_decay and all else that groups of optimizers said, where it
          changed
  alerts, gaps
attempt counts tries at a step, micro_step backwards within it, seq is the order
of execution on a rank, chunk the part of a model in parts.
A shape is text, [2,3]; NULL where it is not known, as in older logs.
NaN is NULL; nans and infs count what was not finite. Conditions on rank, kind
and step (=, <, <=, >, >=, BETWEEN) keep the rest from being read.
Functions of SQLite that only compute may be called, no others.
A table shows 10,000 rows at most; --json and --csv give all.

Examples:
  trainmon query runs/a "SELECT step, max(norm) FROM stats
      WHERE kind = 'grad_reduced' GROUP BY step"
  trainmon query runs/a "SELECT name, step, nans FROM stats WHERE nans > 0
      ORDER BY step, seq LIMIT 10"
  trainmon query runs/a "SELECT s.step, s.norm, l.value AS loss FROM stats s
      JOIN logged l USING (rank, step)
      WHERE s.name = 'head.weight' AND l.name = 'loss'" --csv)");
  command->callback([arguments, &context] { run_query(*arguments, context); });
}

}  // namespace trainmon::cli
