// Binds read.h: runs read back as columns.
#include <nanobind/stl/shared_ptr.h>

#include <cmath>

#include "columns.h"
#include "init.h"
#include "offline_call.h"
#include "read/kind_selection.h"
#include "read/samples.h"
#include "row_columns.h"
#include "rows.h"

namespace nb = nanobind;

namespace trainmon {
namespace {

Rows* read(const nb::bytes& run, std::vector<std::string> kinds, std::vector<std::string> include,
           std::vector<std::string> exclude, std::vector<int> ranks,
           std::optional<std::int64_t> first_step, std::optional<std::int64_t> last_step,
           bool all_restarts, bool merged, const std::optional<std::vector<std::string>>& stats) {
  ReadOptions options = options_of(std::move(kinds), std::move(include), std::move(exclude),
                                   std::move(ranks), first_step, last_step);
  options.all_restarts = all_restarts;
  options.merged = merged;
  if (stats) options.stats = statistics(*stats);
  const std::filesystem::path path = path_of(run);
  return unlocked(path, [&] { return new Rows(read_run(path, options)); });
}

// The run without its rows, and a table of its samples.
nb::tuple samples(const nb::bytes& run, std::vector<std::string> kinds,
                  std::vector<std::string> include, std::vector<std::string> exclude,
                  std::vector<int> ranks, std::optional<std::int64_t> first_step,
                  std::optional<std::int64_t> last_step, bool all_restarts) {
  ReadOptions options = options_of(std::move(kinds), std::move(include), std::move(exclude),
                                   std::move(ranks), first_step, last_step);
  options.all_restarts = all_restarts;
  const std::filesystem::path path = path_of(run);
  std::vector<SampledRow> found;
  Rows* const facts = unlocked(path, [&] {
    RunStream stream(path, options);
    std::vector<Damage> damage;
    found = read_samples(stream, options.threads, damage);
    RunRows rows = stream.take_facts();
    rows.damage.insert(rows.damage.end(), damage.begin(), damage.end());
    return new Rows(std::move(rows));
  });
  nb::object held = nb::cast(facts, nb::rv_policy::take_ownership);
  std::vector<ReadRow> rows;
  for (const SampledRow& one : found) rows.push_back(one.row);
  const std::shared_ptr<ColumnTable> table =
      RowColumns(facts->run().series, {Stat::norm, Stat::mean, Stat::std, Stat::count}).table(rows);
  const auto add = [&](auto type, std::string_view name, const auto& get) {
    table->columns.push_back(column<decltype(type)>(name, found, get));
  };
  using S = SampledRow;
  add(std::int64_t(), "elements", [](const S& s) { return s.sample.elements; });
  add(double(), "norm_error", [](const S& s) { return norm_error(s.row.state, s.sample); });
  add(double(), "mean_error", [](const S& s) { return mean_error(s.row.state, s.sample); });
  add(double(), "sample_min", [](const S& s) { return s.sample.min; });
  add(double(), "sample_max", [](const S& s) { return s.sample.max; });
  add(std::int64_t(), "sample_nans", [](const S& s) { return s.row.state.nans; });
  add(std::int64_t(), "sample_infs",
      [](const S& s) { return s.row.state.pos_infs + s.row.state.neg_infs; });
  add(std::int64_t(), "sample_zeros", [](const S& s) { return s.row.state.zeros; });
  add(std::int64_t(), "sample_subnormals", [](const S& s) { return s.row.state.subnormals; });
  return nb::make_tuple(held, table);
}

}  // namespace

nb::list text_list(const std::vector<std::string>& all) {
  nb::list out;
  for (const std::string& one : all) out.append(text(one));
  return out;
}

nb::list damage_list(const std::vector<Damage>& all) {
  nb::list out;
  for (const Damage& found : all) {
    out.append(nb::make_tuple(path_text(found.file), found.offset, text(found.what)));
  }
  return out;
}

Stat statistic(const std::string& name) {
  const std::optional<Stat> stat = stat_from_name(name);
  if (!stat) throw nb::value_error(("'" + name + "' is not a statistic").c_str());
  return *stat;
}

std::vector<Stat> statistics(const std::vector<std::string>& names) {
  std::vector<Stat> stats;
  for (const std::string& name : names) stats.push_back(statistic(name));
  return stats;
}

ReadOptions options_of(std::vector<std::string> kinds, std::vector<std::string> include,
                       std::vector<std::string> exclude, std::vector<int> ranks,
                       std::optional<std::int64_t> first_step,
                       std::optional<std::int64_t> last_step) {
  ReadOptions options;
  options.kinds = std::move(kinds);
  options.include = std::move(include);
  options.exclude = std::move(exclude);
  options.ranks = std::move(ranks);
  options.first_step = first_step;
  options.last_step = last_step;
  return options;
}

std::shared_ptr<ColumnTable> Rows::columns(const std::vector<std::string>& names) const {
  return RowColumns(run_.series, statistics(names)).table(run_.rows);
}

ColumnTable Rows::scalars() const {
  const std::vector<ReadScalar>& list = run_.scalars;
  const auto restart = [](const ReadScalar& s) { return s.restart; };
  return {std::ssize(list),
          {column<std::int32_t>("restart", list, restart),
           column<std::int32_t>("rank", list, [](const ReadScalar& s) { return s.rank; }),
           column<std::int64_t>("step", list, [](const ReadScalar& s) { return s.step; }),
           coded("name", list, [](const ReadScalar& s) { return std::string_view(s.name); }),
           column<double>("value", list, [](const ReadScalar& s) { return s.value; })}};
}

ColumnTable Rows::declared() const {
  using D = ReadDeclared;
  const std::vector<D>& list = run_.declared;
  const auto number = [](const D& d) {
    return d.value.type == DeclaredValue::Type::number ? d.value.number : std::nan("");
  };
  return {std::ssize(list),
          {column<std::int32_t>("restart", list, [](const D& d) { return d.restart; }),
           column<std::int32_t>("rank", list, [](const D& d) { return d.rank; }),
           column<std::int64_t>("step", list, [](const D& d) { return d.step; }),
           column<std::int32_t>("optimizer", list, [](const D& d) { return d.optimizer; }),
           column<std::int32_t>("param_group", list, [](const D& d) { return d.group; }),
           coded("name", list, [](const D& d) { return std::string_view(d.value.name); }),
           column<double>("value", list, number),
           coded("text", list, [](const D& d) { return std::string_view(d.value.text); }),
           coded("type", list, [](const D& d) { return declared_type_name(d.value.type); })}};
}

nb::list Rows::payloads() const {
  nb::list out;
  for (const ReadPayload& found : run_.payloads) {
    const Series& series = run_.series[found.series];
    const std::vector<std::byte>& bytes = found.payload.bytes;
    nb::dict entry;
    entry["restart"] = found.restart;
    entry["rank"] = found.rank;
    entry["kind"] = text(series.kind);
    entry["chunk"] = series.chunk;
    entry["name"] = text(series.name);
    entry["element"] = text(series.element);
    entry["step"] = found.step;
    entry["attempt"] = found.attempt;
    entry["accum"] = found.payload.key.accum;
    entry["call"] = found.payload.key.call;
    entry["seq"] = found.payload.key.seq;
    out.append(nb::make_tuple(static_cast<int>(found.payload.type),
                              nb::bytes(bytes.data(), bytes.size()), entry));
  }
  return out;
}

nb::list Rows::alerts() const {
  nb::list out;
  for (const ReadAlert& found : run_.alerts) {
    const Series& series = run_.series[found.alert.key.series];
    nb::dict entry;
    entry["restart"] = found.restart;
    entry["rank"] = found.rank;
    entry["rule"] = text(found.alert.rule);
    entry["kind"] = text(series.kind);
    entry["name"] = text(series.name);
    entry["element"] = text(series.element);
    entry["step"] = found.alert.step;
    entry["message"] = text(found.alert.message);
    entry["count"] = found.alert.count;
    entry["stat"] = text(found.alert.stat);
    entry["value"] = found.alert.value;
    entry["expected"] = found.alert.expected;
    out.append(entry);
  }
  return out;
}

nb::list Rows::gaps() const {
  nb::list out;
  for (const ReadGap& found : run_.gaps) {
    nb::dict entry;
    entry["restart"] = found.restart;
    entry["rank"] = found.rank;
    entry["reason"] = text(found.gap.reason);
    entry["rows"] = found.gap.rows;
    entry["first_seq"] = found.gap.first_seq;
    entry["last_seq"] = found.gap.last_seq;
    out.append(entry);
  }
  return out;
}

void init_read(nb::module_& module) {
  nb::class_<ColumnTable>(module, "Columns")
      .def("__len__", [](const ColumnTable& table) { return table.rows; })
      .def("arrays", &numpy_columns)
      .def("__arrow_c_schema__", &arrow_schema)
      .def(
          "__arrow_c_stream__",
          [](std::shared_ptr<ColumnTable> table, const nb::object&) {
            return arrow_stream(std::move(table));
          },
          nb::arg("requested_schema") = nb::none());
  nb::class_<Rows>(module, "Rows")
      .def("__len__", &Rows::size)
      .def("columns", &Rows::columns, nb::arg("stats"))
      .def("scalars", [](const Rows& rows) { return numpy_columns(rows.scalars()); })
      .def("declared", [](const Rows& rows) { return numpy_columns(rows.declared()); })
      .def("payloads", &Rows::payloads)
      .def("alerts", &Rows::alerts)
      .def("gaps", &Rows::gaps)
      .def("damage", [](const Rows& rows) { return damage_list(rows.run().damage); })
      .def("torn_tails", [](const Rows& rows) { return rows.run().torn_tails; })
      .def("kinds", [](const Rows& rows) { return text_list(rows.run().kinds); })
      .def("suggested", [](const Rows& rows) { return text_list(rows.run().suggested); })
      .def("ranks", [](const Rows& rows) { return rows.run().ranks; })
      .def("missing_ranks", [](const Rows& rows) { return rows.run().missing.ranks; })
      .def("missing_text", [](const Rows& rows) { return missing_text(rows.run().missing); })
      .def("earlier", [](const Rows& rows) { return rows.run().earlier; })
      .def("expired", [](const Rows& rows) { return rows.run().expired; })
      .def("incomplete", [](const Rows& rows) { return rows.run().incomplete; });
  // Bytes: kinds of a damaged run need not be UTF-8.
  module.def(
      "kind_selected",
      [](const nb::bytes& kind, const std::vector<std::string>& asked) {
        return kind_selected({kind.c_str(), kind.size()}, asked);
      },
      nb::arg("kind"), nb::arg("asked"),
      "Whether a list of kinds and groups takes a kind of a run.");
  module.def("read_samples", &samples, nb::arg("run"), nb::arg("kinds"), nb::arg("include"),
             nb::arg("exclude"), nb::arg("ranks"), nb::arg("first_step").none(),
             nb::arg("last_step").none(), nb::arg("all_restarts"));
  module.def("read_run", &read, nb::arg("run"), nb::arg("kinds"), nb::arg("include"),
             nb::arg("exclude"), nb::arg("ranks"), nb::arg("first_step").none(),
             nb::arg("last_step").none(), nb::arg("all_restarts"), nb::arg("merged"),
             nb::arg("stats").none(), nb::rv_policy::take_ownership);
}

}  // namespace trainmon
