// Binds rows_by_kind.h: the rows of a rank, one kind after the other, as columns for files.
#include "read/rows_by_kind.h"

#include <algorithm>
#include <cmath>

#include "columns.h"
#include "gil.h"
#include "init.h"
#include "offline_call.h"
#include "rows.h"

namespace nb = nanobind;

namespace trainmon {
namespace {

// What the disk refuses is an OSError.
template <typename Work>
auto on_disk(const Work& work) {
  std::string refused;
  try {
    const ReleasedGil release;
    return work();
  } catch (const SinkError& error) {
    refused = error.what();
  }
  PyErr_SetString(PyExc_OSError, refused.c_str());
  throw nb::python_error();
}

// The run, and its rows by kind.
class SetApart {
 public:
  SetApart(const std::filesystem::path& run, const ReadOptions& options, std::vector<Stat> stats,
           std::filesystem::path folder)
      : rows_(run, options, std::move(stats), std::move(folder)) {}

  Rows* facts() const { return new Rows(rows_.facts()); }
  std::int64_t payload_count() const { return rows_.payload_count(); }
  std::size_t damage_count() const { return rows_.facts().damage.size(); }
  // The kinds that the rank has rows of.
  nb::list take_rank(int rank) {
    on_disk([&] { rows_.take_rank(rank); });
    kinds_ = rows_.kinds();
    return text_list(kinds_);
  }
  KindRows rows_of(std::size_t kind) const {
    return on_disk([&] { return rows_.rows_of(kinds_.at(kind)); });
  }
  nb::dict columns(const KindRows& kind, std::size_t begin, std::size_t end) const {
    std::vector<PlacedRow> rows;
    std::vector<double> values;
    kind.read(begin, end, rows, values);
    ColumnTable out{std::ssize(rows), {}};
    for_each_field(kWideRow, [&]<typename Owner, typename T>(const Field<Owner, T>& field) {
      const auto get = [&](const PlacedRow& row) -> const T& {
        return field.of(row, rows_.facts().series[row.series]);
      };
      out.columns.push_back(field_column<T>(field.name, rows, get));
    });
    const std::size_t width = kind.stats().size();
    for (std::size_t i = 0; i < width; ++i) {
      const StatDefinition& definition = stat_table()[static_cast<std::size_t>(kind.stats()[i])];
      std::size_t at = i;
      const auto next = [&](const PlacedRow&) {
        const double value = values[at];
        at += width;
        return value;
      };
      if (definition.type != "int64") {
        out.columns.push_back(column<double>(definition.name, rows, next));
        continue;
      }
      std::vector<std::uint8_t> unknown;  // where an estimate does not tell of a count
      out.columns.push_back(column<std::int64_t>(definition.name, rows, [&](const PlacedRow& row) {
        const double count = next(row);
        unknown.push_back(std::isnan(count) ? 1 : 0);
        return std::isnan(count) ? 0.0 : count;
      }));
      if (std::ranges::find(unknown, 1) != unknown.end()) {
        out.columns.back()->are_unknown = std::move(unknown);
      }
    }
    return numpy_columns(out);
  }

 private:
  RowsByKind rows_;
  std::vector<std::string> kinds_;
};

SetApart* set_apart(const nb::bytes& run, std::vector<std::string> kinds,
                    std::vector<std::string> include, std::vector<std::string> exclude,
                    std::vector<int> ranks, std::optional<std::int64_t> first_step,
                    std::optional<std::int64_t> last_step, bool all_restarts,
                    const std::vector<std::string>& stats, const nb::bytes& folder,
                    unsigned threads) {
  ReadOptions options = options_of(std::move(kinds), std::move(include), std::move(exclude),
                                   std::move(ranks), first_step, last_step);
  options.all_restarts = all_restarts;
  options.threads = threads;
  const std::vector<Stat> asked = statistics(stats);
  const std::filesystem::path path = path_of(run), beside = path_of(folder);
  return unlocked(path, [&] { return new SetApart(path, options, asked, beside); });
}

}  // namespace

void init_rows_by_kind(nb::module_& module) {
  nb::class_<KindRows>(module, "KindRows").def("__len__", &KindRows::size);
  nb::class_<SetApart>(module, "RowsByKind")
      .def("facts", &SetApart::facts, nb::rv_policy::take_ownership)
      .def("payload_count", &SetApart::payload_count)
      .def("damage_count", &SetApart::damage_count)
      .def("take_rank", &SetApart::take_rank, nb::arg("rank"))
      .def("rows_of", &SetApart::rows_of, nb::arg("kind"), "The kind by its place in take_rank().")
      .def("columns", &SetApart::columns, nb::arg("rows"), nb::arg("begin"), nb::arg("end"));
  module.def("rows_by_kind", &set_apart, nb::arg("run"), nb::arg("kinds"), nb::arg("include"),
             nb::arg("exclude"), nb::arg("ranks"), nb::arg("first_step").none(),
             nb::arg("last_step").none(), nb::arg("all_restarts"), nb::arg("stats"),
             nb::arg("folder"), nb::arg("threads"), nb::rv_policy::take_ownership);
}

}  // namespace trainmon
