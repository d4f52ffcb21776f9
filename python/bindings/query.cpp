// Binds SQL over a run in SQLite's engine.
#include "answers/query.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <utility>
#include <variant>
#include <vector>

#include "init.h"
#include "offline_call.h"
#include "rows.h"

namespace trainmon {

namespace nb = nanobind;

namespace {

nb::object cell(const SqlValue& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return nb::int_(*whole);
  if (const auto* real = std::get_if<double>(&value)) return nb::float_(*real);
  if (const auto* one = std::get_if<std::string>(&value)) return text(*one);
  return nb::none();
}

// Names of columns, rows as tuples, and what the answer may lack: sentences, then damage.
nb::tuple run_query(const nb::bytes& run, const std::string& sql, bool all_restarts,
                    double timeout) {
  const std::filesystem::path path = path_of(run);
  std::vector<std::string> names;
  std::vector<std::vector<SqlValue>> rows;
  const QueryOutput output{[&](const std::vector<std::string>& columns) { names = columns; },
                           [&](const std::vector<SqlValue>& cells) { rows.push_back(cells); }};
  const QueryAccount account = unlocked(path, [&] {
    return query(path, sql, output, {all_restarts, timeout});
  });
  nb::list answer;
  for (const std::vector<SqlValue>& row : rows) {
    nb::list cells;
    for (const SqlValue& value : row) cells.append(cell(value));
    answer.append(nb::tuple(cells));
  }
  nb::list lacks = text_list(account.incomplete);
  if (!account.missing.ranks.empty()) lacks.append(text(missing_text(account.missing)));
  return nb::make_tuple(text_list(names), answer, lacks, damage_list(account.damage));
}

}  // namespace

void init_query(nb::module_& module) {
  module.def("query", &run_query, nb::arg("run"), nb::arg("sql"), nb::arg("all_restarts"),
             nb::arg("timeout"));
}

}  // namespace trainmon
