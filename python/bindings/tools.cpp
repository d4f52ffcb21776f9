// Binds tools.h: reading runs back as columns, the first bad row, the largest values.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <system_error>
#include <utility>

#include "answers/anomalies.h"
#include "answers/top.h"
#include "init.h"
#include "offline_call.h"
#include "read/kind_selection.h"
#include "trainmon/first_bad.h"
#include "trainmon/read.h"

namespace nb = nanobind;

namespace trainmon {
namespace {

nb::object path_text(const std::filesystem::path& path) {
  return text(path.native());
}

template <typename T>
nb::object array(std::vector<T> values) {
  auto* owned = new std::vector<T>(std::move(values));
  const nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(owned->data(), {owned->size()}, owner));
}

template <typename T, typename Records, typename Get>
nb::object column(const Records& records, const Get& get) {
  std::vector<T> values;
  values.reserve(records.size());
  for (const auto& record : records) values.push_back(static_cast<T>(get(record)));
  return array(std::move(values));
}

// Text as codes and the texts they stand for: (int32 array, list).
template <typename Records, typename Get>
nb::object coded(const Records& records, const Get& get) {
  std::map<std::string_view, std::int32_t> known;
  nb::list names;
  nb::object codes = column<std::int32_t>(records, [&](const auto& record) {
    const std::string_view name = get(record);
    const auto [at, is_new] = known.try_emplace(name, static_cast<std::int32_t>(known.size()));
    if (is_new) names.append(text(name));
    return at->second;
  });
  return nb::make_tuple(codes, names);
}

void add_statistic(nb::dict& columns, Stat stat, const std::vector<ReadRow>& rows) {
  const StatDefinition& definition = stat_table()[static_cast<std::size_t>(stat)];
  const auto get = [&](const ReadRow& row) { return derive(stat, row.state); };
  columns[text(definition.name)] =
      definition.type == "int64" ? column<std::int64_t>(rows, get) : column<double>(rows, get);
}

nb::dict key_columns(const RunRows& run) {
  const auto series = [&](const ReadRow& row) -> const Series& { return run.series[row.series]; };
  const std::vector<ReadRow>& rows = run.rows;
  nb::dict out;
  out["restart"] = column<std::int32_t>(rows, [](const ReadRow& r) { return r.restart; });
  out["rank"] = column<std::int32_t>(rows, [](const ReadRow& r) { return r.rank; });
  out["kind"] = coded(rows, [&](const ReadRow& r) { return std::string_view(series(r).kind); });
  out["chunk"] = column<std::int32_t>(rows, [&](const ReadRow& r) { return series(r).chunk; });
  out["name"] = coded(rows, [&](const ReadRow& r) { return std::string_view(series(r).name); });
  out["element"] =
      coded(rows, [&](const ReadRow& r) { return std::string_view(series(r).element); });
  out["optimizer"] =
      column<std::int32_t>(rows, [&](const ReadRow& r) { return series(r).optimizer; });
  out["step"] = column<std::int64_t>(rows, [](const ReadRow& r) { return r.step; });
  out["attempt"] = column<std::int32_t>(rows, [](const ReadRow& r) { return r.attempt; });
  out["micro_step"] = column<std::int32_t>(rows, [](const ReadRow& r) { return r.micro_step; });
  out["call"] = column<std::int32_t>(rows, [](const ReadRow& r) { return r.call; });
  out["seq"] = column<std::int64_t>(rows, [](const ReadRow& r) { return r.seq; });
  out["flags"] = column<std::uint32_t>(rows, [](const ReadRow& r) { return r.flags; });
  out["window"] = column<std::int64_t>(rows, [](const ReadRow& r) { return r.window; });
  out["accum"] = column<std::int32_t>(rows, [](const ReadRow& r) { return r.accum; });
  out["fate"] = coded(rows, [](const ReadRow& r) { return fate_name(r.fate); });
  out["loss_scale"] = column<double>(rows, [](const ReadRow& r) { return r.loss_scale; });
  out["dtype"] = coded(rows, [&](const ReadRow& r) { return dtype_name(series(r).dtype); });
  out["replication"] =
      coded(rows, [&](const ReadRow& r) { return replication_name(series(r).replication); });
  std::map<const Shape*, std::string> shapes;
  for (const ReadRow& row : rows) {
    if (!shapes.contains(row.shape)) shapes[row.shape] = shape_text(row.shape);
  }
  out["shape"] =
      coded(rows, [&](const ReadRow& r) { return std::string_view(shapes.at(r.shape)); });
  return out;
}

nb::dict row_dict(const ReadRow& row, const Series& series) {
  nb::dict out;
  out["restart"] = row.restart;
  out["rank"] = row.rank;
  out["kind"] = text(series.kind);
  out["chunk"] = series.chunk;
  out["name"] = text(series.name);
  out["element"] = text(series.element);
  out["optimizer"] = series.optimizer;
  out["step"] = row.step;
  out["attempt"] = row.attempt;
  out["micro_step"] = row.micro_step;
  out["call"] = row.call;
  out["seq"] = row.seq;
  out["flags"] = row.flags;
  out["fate"] = text(fate_name(row.fate));
  nb::dict statistics;
  for (const StatDefinition& definition : stat_table()) {
    const double value = derive(definition.stat, row.state);
    statistics[text(definition.name)] =
        definition.type == "int64" ? nb::cast(static_cast<std::int64_t>(value)) : nb::cast(value);
  }
  out["stats"] = statistics;
  return out;
}

// A run that was read, held in C++; columns are made when asked for.
class Rows {
 public:
  explicit Rows(RunRows run) : run_(std::move(run)) {}

  std::size_t size() const { return run_.rows.size(); }
  nb::dict keys() const { return key_columns(run_); }
  nb::dict statistics(const std::vector<std::string>& names) const {
    nb::dict out;
    for (const std::string& name : names) {
      const std::optional<Stat> stat = stat_from_name(name);
      if (!stat) throw nb::value_error(("'" + name + "' is not a statistic").c_str());
      add_statistic(out, *stat, run_.rows);
    }
    return out;
  }

  nb::dict scalars() const {
    const std::vector<ReadScalar>& list = run_.scalars;
    nb::dict out;
    out["restart"] = column<std::int32_t>(list, [](const ReadScalar& s) { return s.restart; });
    out["rank"] = column<std::int32_t>(list, [](const ReadScalar& s) { return s.rank; });
    out["step"] = column<std::int64_t>(list, [](const ReadScalar& s) { return s.step; });
    out["name"] = coded(list, [](const ReadScalar& s) { return std::string_view(s.name); });
    out["value"] = column<double>(list, [](const ReadScalar& s) { return s.value; });
    return out;
  }

  nb::dict declared() const {
    const std::vector<ReadDeclared>& list = run_.declared;
    const auto number = [](const ReadDeclared& d) {
      return d.value.type == DeclaredValue::Type::number ? d.value.number : std::nan("");
    };
    nb::dict out;
    out["restart"] = column<std::int32_t>(list, [](const ReadDeclared& d) { return d.restart; });
    out["rank"] = column<std::int32_t>(list, [](const ReadDeclared& d) { return d.rank; });
    out["step"] = column<std::int64_t>(list, [](const ReadDeclared& d) { return d.step; });
    out["optimizer"] =
        column<std::int32_t>(list, [](const ReadDeclared& d) { return d.optimizer; });
    out["param_group"] = column<std::int32_t>(list, [](const ReadDeclared& d) { return d.group; });
    out["name"] = coded(list, [](const ReadDeclared& d) { return std::string_view(d.value.name); });
    out["value"] = column<double>(list, number);
    out["text"] = coded(list, [](const ReadDeclared& d) { return std::string_view(d.value.text); });
    out["type"] =
        coded(list, [](const ReadDeclared& d) { return declared_type_name(d.value.type); });
    return out;
  }

  // (type, bytes, place): Python knows what a type means.
  nb::list payloads() const {
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

  nb::list alerts() const {
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

  nb::list gaps() const {
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

  nb::list damage() const {
    nb::list out;
    for (const Damage& found : run_.damage) {
      out.append(nb::make_tuple(path_text(found.file), found.offset, text(found.what)));
    }
    return out;
  }

  std::int64_t torn_tails() const { return run_.torn_tails; }
  nb::list kinds() const {
    nb::list out;
    for (const std::string& kind : run_.kinds) out.append(text(kind));
    return out;
  }
  nb::list suggested() const {
    nb::list out;
    for (const std::string& pattern : run_.suggested) out.append(text(pattern));
    return out;
  }
  std::vector<int> ranks() const { return run_.ranks; }
  std::vector<int> missing_ranks() const { return run_.missing.ranks; }
  std::string missing() const { return missing_text(run_.missing); }
  std::vector<std::string> earlier() const { return run_.earlier; }
  std::vector<std::string> incomplete() const { return run_.incomplete; }

  nb::list find_top(const std::string& name, std::size_t count, bool smallest) const {
    const std::optional<Stat> stat = stat_from_name(name);
    if (!stat) throw nb::value_error(("'" + name + "' is not a statistic").c_str());
    nb::list out;
    for (const Ranked& ranked : top(run_, *stat, count, smallest)) {
      nb::dict entry = row_dict(ranked.row, run_.series[ranked.row.series]);
      entry["stat"] = text(name);
      entry["value"] = ranked.value;
      out.append(entry);
    }
    return out;
  }

 private:
  RunRows run_;
};

[[noreturn]] void raise_os_error(const std::system_error& error) {
  // Which subclass of OSError it is (PermissionError, ...), OSError decides by the number.
  const nb::object raised = nb::handle(PyExc_OSError)(error.code().value(), error.what());
  PyErr_SetObject(raised.type().ptr(), raised.ptr());
  throw nb::python_error();
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

// What `work` makes of this run, without the GIL.
template <typename Work>
auto unlocked(const std::filesystem::path& path, const Work& work) {
  try {
    const nb::gil_scoped_release release;
    settle_writers_of(path);
    return work();
  } catch (const std::system_error& error) {
    raise_os_error(error);
  }
}

Rows* read(const nb::bytes& run, std::vector<std::string> kinds, std::vector<std::string> include,
           std::vector<std::string> exclude, std::vector<int> ranks,
           std::optional<std::int64_t> first_step, std::optional<std::int64_t> last_step,
           bool all_restarts, bool merged) {
  ReadOptions options = options_of(std::move(kinds), std::move(include), std::move(exclude),
                                   std::move(ranks), first_step, last_step);
  options.all_restarts = all_restarts;
  options.merged = merged;
  const std::filesystem::path path = path_of(run);
  return unlocked(path, [&] { return new Rows(read_run(path, options)); });
}

// The run without its rows, and the first bad one or None.
nb::tuple find_first_bad(const nb::bytes& run, std::vector<std::string> kinds,
                         std::vector<std::string> include, std::vector<std::string> exclude,
                         std::vector<int> ranks, std::optional<std::int64_t> first_step,
                         std::optional<std::int64_t> last_step) {
  const ReadOptions options = options_of(std::move(kinds), std::move(include), std::move(exclude),
                                         std::move(ranks), first_step, last_step);
  const std::filesystem::path path = path_of(run);
  FirstBadOfRun answer = unlocked(path, [&] { return first_bad(path, options); });
  nb::object found = nb::none();
  if (answer.found) {
    const FirstBad& bad = *answer.found;
    nb::dict row = row_dict(bad.row, bad.series);
    row["ranks"] = nb::tuple(nb::cast(bad.ranks));
    row["came_from"] = text(bad.came_from);
    row["why"] = text(bad.why);
    row["module"] = text(bad.module);
    std::vector<int> restarts;
    for (const FirstBad::OfRestart& one : bad.restarts) restarts.push_back(one.row.restart);
    row["restarts"] = nb::tuple(nb::cast(restarts));
    found = row;
  }
  return nb::make_tuple(nb::cast(new Rows(std::move(answer.run)), nb::rv_policy::take_ownership),
                        found);
}

// What alert rules found, in order: read, cut to the first `count`, and written where asked to.
nb::dict find_anomalies(const nb::bytes& directory, const std::vector<std::int64_t>& steps,
                        std::size_t count, const std::optional<nb::bytes>& out) {
  AnomalyList list;
  std::size_t total = 0;
  const std::filesystem::path from = path_of(directory);
  const std::filesystem::path to = out ? path_of(*out) : std::filesystem::path();
  try {
    const nb::gil_scoped_release release;
    settle_writers_of(from);
    list = read_anomalies(from, {steps.begin(), steps.end()});
    total = list.entries.size();
    list.entries.resize(std::min(total, count));
    if (out) write_anomalies(to, list.entries);
  } catch (const std::system_error& error) {
    raise_os_error(error);
  }
  nb::list entries;
  for (const Anomaly& one : list.entries) {
    nb::dict entry;
    entry["key"] = text(one.key);
    entry["rank"] = one.rank;
    entry["step"] = one.step;
    entry["micro_step"] = one.micro_step;
    entry["pp_stage"] = one.pp_stage;
    entry["vpp_stage"] = one.vpp_stage;
    entry["call_id"] = one.call_id;
    entry["tag_name"] = text(one.tag_name);
    entry["message"] = text(one.message);
    entry["group_mates"] = nb::cast(one.group_mates);
    entries.append(entry);
  }
  nb::list damage;
  for (const Damage& found : list.damage) {
    damage.append(nb::make_tuple(path_text(found.file), text(found.what)));
  }
  nb::dict result;
  result["entries"] = entries;
  result["total"] = total;
  result["files"] = list.files;
  result["damage"] = damage;
  result["missing"] = missing_text(list.missing);
  return result;
}

}  // namespace

void init_tools(nb::module_& module) {
  nb::class_<Rows>(module, "Rows")
      .def("__len__", &Rows::size)
      .def("keys", &Rows::keys)
      .def("statistics", &Rows::statistics, nb::arg("names"))
      .def("scalars", &Rows::scalars)
      .def("declared", &Rows::declared)
      .def("payloads", &Rows::payloads)
      .def("alerts", &Rows::alerts)
      .def("gaps", &Rows::gaps)
      .def("damage", &Rows::damage)
      .def("torn_tails", &Rows::torn_tails)
      .def("kinds", &Rows::kinds)
      .def("suggested", &Rows::suggested)
      .def("ranks", &Rows::ranks)
      .def("missing_ranks", &Rows::missing_ranks)
      .def("missing_text", &Rows::missing)
      .def("earlier", &Rows::earlier)
      .def("incomplete", &Rows::incomplete)
      .def("top", &Rows::find_top, nb::arg("stat"), nb::arg("count"), nb::arg("smallest"));
  // Bytes: kinds of a damaged run need not be UTF-8.
  module.def(
      "kind_selected",
      [](const nb::bytes& kind, const std::vector<std::string>& asked) {
        return kind_selected({kind.c_str(), kind.size()}, asked);
      },
      nb::arg("kind"), nb::arg("asked"),
      "Whether a list of kinds and groups takes a kind of a run.");
  module.def("read_run", &read, nb::arg("run"), nb::arg("kinds"), nb::arg("include"),
             nb::arg("exclude"), nb::arg("ranks"), nb::arg("first_step").none(),
             nb::arg("last_step").none(), nb::arg("all_restarts"), nb::arg("merged"),
             nb::rv_policy::take_ownership);
  module.def("first_bad", &find_first_bad, nb::arg("run"), nb::arg("kinds"), nb::arg("include"),
             nb::arg("exclude"), nb::arg("ranks"), nb::arg("first_step").none(),
             nb::arg("last_step").none());
  module.def("anomalies", &find_anomalies, nb::arg("directory"), nb::arg("steps"), nb::arg("count"),
             nb::arg("out").none());
}

}  // namespace trainmon
