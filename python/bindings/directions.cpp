// Binds directions_compare.h: one call that gives the report as a list of dicts, one per rank.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "directions/directions_compare.h"
#include "init.h"
#include "offline_call.h"

namespace nb = nanobind;

namespace trainmon {
namespace {

using AgreementRows = std::vector<std::vector<Agreement>>;

// One of an agreement's numbers: int64, [row][step].
nb::object table(const AgreementRows& rows, std::size_t steps, std::int64_t Agreement::*number) {
  auto* owned = new std::vector<std::int64_t>();
  const nb::capsule owner(
      owned, [](void* p) noexcept { delete static_cast<std::vector<std::int64_t>*>(p); });
  for (const std::vector<Agreement>& row : rows) {
    for (const Agreement& one : row) owned->push_back(one.*number);
  }
  return nb::cast(nb::ndarray<nb::numpy, std::int64_t, nb::ndim<2>>(owned->data(),
                                                                    {rows.size(), steps}, owner));
}

nb::list remark_list(const std::vector<Remark>& all) {
  nb::list list;
  for (const Remark& one : all) {
    list.append(nb::make_tuple(one.rank, text(one.parameter), one.steps, text(one.what)));
  }
  return list;
}

nb::dict rank_dict(const RankDirections& rank) {
  nb::list parameters, suspicions;
  for (const std::string& name : rank.parameters) parameters.append(text(name));
  for (const Suspicion& one : rank.suspicions) {
    const bool is_drop = one.rule == DirectionRule::drop;
    suspicions.append(nb::make_tuple(text(rank.parameters[one.parameter]), one.step,
                                     is_drop ? "drop" : "first_step", one.here.similarity(),
                                     is_drop ? nb::cast(one.before.similarity()) : nb::none()));
  }
  const std::size_t steps = rank.steps.size();
  nb::dict out;
  out["rank"] = nb::cast(rank.rank);
  out["out"] = text(rank.out.native());
  out["steps"] = nb::cast(rank.steps);
  out["parameters"] = parameters;
  out["equal"] = table(rank.agreements, steps, &Agreement::equal);
  out["elements"] = table(rank.agreements, steps, &Agreement::elements);
  out["summary_equal"] = table({rank.summary}, steps, &Agreement::equal);
  out["summary_elements"] = table({rank.summary}, steps, &Agreement::elements);
  out["suspicions"] = suspicions;
  out["not_compared"] = remark_list(rank.not_compared);
  out["doubts"] = remark_list(rank.doubts);
  return out;
}

nb::tuple run_compare_directions(const nb::bytes& first, const nb::bytes& second,
                                 const nb::bytes& out, int threads, const nb::object& progress) {
  DirectionsOptions options;
  options.first = path_of(first);
  options.second = path_of(second);
  options.out = path_of(out);
  options.threads = threads;
  const DirectionsReport report = run_offline(options, progress, [](const DirectionsOptions& o) {
    settle_writers_of(o.first);
    settle_writers_of(o.second);
    return compare_directions(o);
  });
  nb::list ranks;
  for (const RankDirections& rank : report.ranks) ranks.append(rank_dict(rank));
  return nb::make_tuple(ranks, remark_list(report.not_compared));
}

}  // namespace

void init_directions(nb::module_& module) {
  module.def("compare_directions", &run_compare_directions, nb::arg("first"), nb::arg("second"),
             nb::arg("out"), nb::arg("threads"), nb::arg("progress").none());
}

}  // namespace trainmon
