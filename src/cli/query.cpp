// trainmon query RUN "SQL": SQLite's engine over the logs, or DuckDB's by trainmon's Python.
#include "answers/query.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <stdexcept>

#include "base/formula.h"
#include "base/text.h"
#include "cli/output.h"
#include "cli/python.h"
#include "cli/select.h"

namespace trainmon::cli {
namespace {

struct QueryArguments {
  std::string run;
  std::string sql;
  bool csv = false;
  bool safe_cells = false;
  std::string engine = "sqlite";
  QueryOptions options{.all_restarts = false, .timeout_seconds = 3600.0};
};

// Lines of a pipe, one by one.
class Lines {
 public:
  explicit Lines(int from) : from_(from) {}
  std::optional<std::string> next() {
    for (std::size_t end = 0; (end = text_.find('\n')) == std::string::npos;) {
      std::array<char, 65536> part{};
      const ssize_t size = ::read(from_, part.data(), part.size());
      if (size < 0 && errno == EINTR) continue;
      if (size <= 0) return std::nullopt;  // what has no end is no line
      text_.append(part.data(), static_cast<std::size_t>(size));
    }
    const std::size_t end = text_.find('\n');
    std::string line = text_.substr(0, end);
    text_.erase(0, end + 1);
    return line;
  }

 private:
  const int from_;
  std::string text_;
};

// A cell as trainmon.querying writes it: a number that JSON has no word for is an object.
SqlValue cell_of(const Json& cell) {
  if (cell.is_number_integer()) return cell.get<std::int64_t>();
  if (cell.is_number()) return cell.get<double>();
  if (cell.is_string()) return cell.get<std::string>();
  if (cell.is_object()) return std::strtod(cell.at("real").get<std::string>().c_str(), nullptr);
  return {};
}

// trainmon's Python has the engine: it gives names, rows, and what the answer may lack, line by
// line (python/trainmon/querying.py).
QueryAccount ask_duckdb(const QueryArguments& arguments, const QueryOutput& output) {
  const QueryOptions& options = arguments.options;
  std::vector<std::string> words = {"trainmon.querying", "--timeout",
                                    number_text(options.timeout_seconds)};
  if (options.all_restarts) words.emplace_back("--all-restarts");
  words.insert(words.end(), {"--", arguments.run, arguments.sql});
  PythonProcess python(module_program(), words, true);
  QueryAccount account;
  bool is_whole = false;
  for (Lines lines(python.output()); const std::optional<std::string> line = lines.next();) {
    const Json said = Json::parse(*line);
    if (said.is_array()) {
      std::vector<SqlValue> cells;
      for (const Json& cell : said) cells.push_back(cell_of(cell));
      output.row(cells);
    } else if (said.contains("columns")) {
      output.columns(said["columns"].get<std::vector<std::string>>());
    } else if (said.contains("error")) {
      throw std::invalid_argument(said["error"].get<std::string>());
    } else {
      account.incomplete = said["lacks"].get<std::vector<std::string>>();
      is_whole = true;
    }
  }
  if (python.wait() && is_whole) return account;
  throw std::runtime_error("--engine duckdb needs trainmon's Python, and '" +
                           printable(interpreter()) +
                           "' did not answer; TRAINMON_PYTHON names another one");
}

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
  const QueryAccount account = arguments.engine == "duckdb"
                                   ? ask_duckdb(arguments, output)
                                   : query(arguments.run, arguments.sql, output, arguments.options);
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
  if (arguments.engine == "duckdb" && arguments.options.threads > 0) {
    throw std::invalid_argument(
        "--threads: not with --engine duckdb, which has threads of its own");
  }
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
  command->add_option("SQL", arguments->sql, "one SELECT, in the dialect of the engine")
      ->required();
  command->add_option("--engine", arguments->engine, "duckdb needs trainmon and duckdb in Python")
      ->capture_default_str()
      ->check(CLI::IsMember({"sqlite", "duckdb"}));
  command->add_flag("--csv", arguments->csv, "CSV on stdout, numbers exact");
  command->add_flag("--safe-cells", arguments->safe_cells,
                    "with --csv: text never looks like a formula");
  command
      ->add_option("--timeout", arguments->options.timeout_seconds,
                   "seconds that the statement may take; 0: any")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  add_threads(*command, arguments->options.threads);
  command->add_flag("--all-restarts", arguments->options.all_restarts,
                    "also rows that a restart replaced");
  command->footer(R"(Tables:
  stats   restart rank kind chunk name element optimizer step attempt micro_step
          call seq flags window accum fate loss_scale dtype replication shape,
          and every statistic (docs/statistics.md)
  samples of rows that are estimates: which row, as in stats, then elements
          mean_error norm_error sample_min sample_max sample_nans and so on
  logged  restart rank step name value: what mon.log was given
  declared  restart rank step optimizer param_group name value type window: lr,
          weight_decay and all else that groups of optimizers said, where it
          changed
  alerts, gaps
attempt counts tries at a step, micro_step backwards within it. seq is the order
of execution on a rank, chunk the part of a model in parts.
A shape is text, [2,3]; NULL where it is not known, as in older logs.
NaN is NULL (null in JSON, too); nans and infs count what was not finite.
Conditions on rank, kind and step (=, <, <=, >, >=, BETWEEN) keep the rest from
being read. Functions that only compute may be called, no others. DuckDB starts
in half a second and pays from some million rows on, or for what SQLite does not
have.
A table shows 10,000 rows at most; --json and --csv give all.

Examples:
  trainmon query runs/a "SELECT step, max(norm) FROM stats
      WHERE kind = 'grad_reduced' GROUP BY step"
  trainmon query runs/a "SELECT name, step, nans FROM stats WHERE nans > 0
      ORDER BY step, seq LIMIT 10"
  trainmon query runs/a "SELECT s.step, s.norm, l.value AS loss FROM stats s
      JOIN logged l USING (rank, step)
      WHERE s.name = 'head.weight' AND l.name = 'loss'" --csv
  trainmon query runs/a "SELECT kind, median(norm) FROM stats GROUP BY ALL"
      --engine duckdb)");
  command->callback([arguments, &context] { run_query(*arguments, context); });
}

}  // namespace trainmon::cli
