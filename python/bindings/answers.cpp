// Binds the answers about runs: the first bad row, the largest values, what alert rules found.
#include <algorithm>
#include <filesystem>

#include "answers/anomalies.h"
#include "answers/diagnose.h"
#include "answers/top.h"
#include "init.h"
#include "model/wide_row.h"
#include "offline_call.h"
#include "read/row_filter.h"
#include "rows.h"
#include "trainmon/first_bad.h"

namespace nb = nanobind;

namespace trainmon {
namespace {

// A cell of the wide row as an object of Python, where every integer is exact.
struct PutObject {
  nb::dict& to;
  std::string_view name;
  void operator()(std::int64_t value) const { to[text(name)] = value; }
  void operator()(double value) const { to[text(name)] = value; }
  void operator()(std::string_view value) const { to[text(name)] = text(value); }
  void operator()(Fingerprint value) const { to[text(name)] = static_cast<std::uint64_t>(value); }
  void operator()(Unknown) const { to[text(name)] = nb::none(); }
};

nb::dict row_dict(const ReadRow& row, const Series& series) {
  nb::dict out;
  for_each_field(kWideRow, [&](const auto& field) {
    if (field.in_answer != InAnswer::yes) return;
    put_cell(field.of(row, series), PutObject{out, field.name});
  });
  nb::dict statistics;
  for (const StatDefinition& definition : stat_table()) {
    put_statistic(derive(definition.stat, row.state), definition.type == "int64",
                  PutObject{statistics, definition.name});
  }
  out["stats"] = statistics;
  return out;
}

// The run without its rows, what was found, and a sentence where the selection took no row.
template <typename Answer>
nb::tuple answered(Answer&& answer, nb::object found, const ReadOptions& options) {
  const std::string unmatched = no_match_text(answer.run, answer.rows, options);
  return nb::make_tuple(nb::cast(new Rows(std::move(answer.run)), nb::rv_policy::take_ownership),
                        std::move(found), text(unmatched));
}

// Found: the first bad row, or None.
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
    nb::list changes;
    for (const std::string& change : bad.changes) changes.append(text(change));
    row["changes"] = nb::tuple(changes);
    row["follows_gap"] = bad.follows_gap;
    std::vector<int> restarts;
    for (const FirstBad::OfRestart& one : bad.restarts) restarts.push_back(one.row.restart);
    row["restarts"] = nb::tuple(nb::cast(restarts));
    found = row;
  }
  return answered(std::move(answer), found, options);
}

// Found: JSON.
nb::tuple find_diagnosis(const nb::bytes& run, std::vector<std::string> kinds,
                         std::vector<std::string> include, std::vector<std::string> exclude,
                         std::vector<int> ranks, std::optional<std::int64_t> first_step,
                         std::optional<std::int64_t> last_step, bool all_restarts) {
  ReadOptions options = options_of(std::move(kinds), std::move(include), std::move(exclude),
                                   std::move(ranks), first_step, last_step);
  options.all_restarts = all_restarts;
  const std::filesystem::path path = path_of(run);
  Diagnosis answer = unlocked(path, [&] { return diagnose(path, options); });
  const nb::object json = text(diagnosis_json(answer));
  return answered(std::move(answer), json, options);
}

// What alert rules found, in order: read, cut to the first `count`, and written where asked to.
nb::dict find_anomalies(const nb::bytes& directory, const std::vector<std::int64_t>& steps,
                        std::size_t count, const std::optional<nb::bytes>& out) {
  std::size_t total = 0;
  const std::filesystem::path from = path_of(directory);
  const std::filesystem::path to = out ? path_of(*out) : std::filesystem::path();
  const AnomalyList list = unlocked(from, [&] {
    AnomalyList all = read_anomalies(from, {steps.begin(), steps.end()});
    total = all.entries.size();
    all.entries.resize(std::min(total, count));
    if (out) write_anomalies(to, all.entries);
    return all;
  });
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

// Found: the rows that lead.
nb::tuple find_top(const nb::bytes& run, std::vector<std::string> kinds,
                   std::vector<std::string> include, std::vector<std::string> exclude,
                   std::vector<int> ranks, std::optional<std::int64_t> first_step,
                   std::optional<std::int64_t> last_step, const std::string& name,
                   std::size_t count, bool by_history, bool smallest) {
  const ReadOptions options = options_of(std::move(kinds), std::move(include), std::move(exclude),
                                         std::move(ranks), first_step, last_step);
  const std::filesystem::path path = path_of(run);
  const Stat stat = statistic(name);
  TopOfRun answer = unlocked(path, [&] {
    return by_history ? most_unusual(path, options, stat, count)
                      : top(path, options, stat, count, smallest);
  });
  nb::list out;
  for (const Ranked& ranked : answer.ranked) {
    nb::dict entry = row_dict(ranked.row, answer.run.series[ranked.row.series]);
    entry["stat"] = text(name);
    entry["value"] = ranked.value;
    entry["unusual"] = ranked.score;
    entry["before"] = ranked.usual;
    out.append(entry);
  }
  return answered(std::move(answer), out, options);
}

}  // namespace

void init_answers(nb::module_& module) {
  module.def("first_bad", &find_first_bad, nb::arg("run"), nb::arg("kinds"), nb::arg("include"),
             nb::arg("exclude"), nb::arg("ranks"), nb::arg("first_step").none(),
             nb::arg("last_step").none());
  module.def("diagnose", &find_diagnosis, nb::arg("run"), nb::arg("kinds"), nb::arg("include"),
             nb::arg("exclude"), nb::arg("ranks"), nb::arg("first_step").none(),
             nb::arg("last_step").none(), nb::arg("all_restarts"));
  module.def("top", &find_top, nb::arg("run"), nb::arg("kinds"), nb::arg("include"),
             nb::arg("exclude"), nb::arg("ranks"), nb::arg("first_step").none(),
             nb::arg("last_step").none(), nb::arg("stat"), nb::arg("count"), nb::arg("by_history"),
             nb::arg("smallest"));
  module.def("anomalies", &find_anomalies, nb::arg("directory"), nb::arg("steps"), nb::arg("count"),
             nb::arg("out").none());
}

}  // namespace trainmon
