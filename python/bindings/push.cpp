// Binds the steps of a run as trackers are given them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "answers/pushed_steps.h"
#include "gil.h"
#include "init.h"
#include "offline_call.h"
#include "rows.h"

namespace nb = nanobind;

namespace trainmon {
namespace {

void open_steps(PushedSteps* self, const nb::bytes& run, std::size_t series, std::vector<int> ranks,
                bool newest_only, const std::optional<nb::bytes>& state) {
  PushOptions options{series, std::move(ranks), newest_only, std::nullopt};
  if (state) options.state = path_of(*state);
  const std::filesystem::path path = path_of(run);
  unlocked(path, [&] { new (self) PushedSteps(path, std::move(options)); });
}

// (start, restart, step, seconds since 1970, [(number of series, value), ...]) of each.
nb::list look(PushedSteps& steps, std::size_t most) {
  std::vector<PushedStep> found;
  {
    const ReleasedGil release;
    found = steps.look(most);
  }
  nb::list out;
  for (const PushedStep& one : found) {
    out.append(nb::make_tuple(one.start, one.restart, one.step,
                              static_cast<double>(one.time_ns) * 1e-9, nb::cast(one.values)));
  }
  return out;
}

// (family, kind, name, rank or -1, path), from the series of this number on.
nb::list series_from(const PushedSteps& steps, std::size_t first) {
  nb::list out;
  for (std::size_t i = first; i < steps.series().size(); ++i) {
    const PushedSeries& one = steps.series()[i];
    out.append(nb::make_tuple(nb::str(family_name(one.family).data()), one.kind, one.name, one.rank,
                              one.path()));
  }
  return out;
}

nb::dict left_out(const PushedSteps& steps) {
  nb::dict out;
  for (std::size_t i = 0; i < kFamilies; ++i) {
    const auto family = static_cast<Family>(i);
    if (const std::int64_t count = steps.choice().left_out(family); count > 0) {
      out[family_name(family).data()] = count;
    }
  }
  return out;
}

}  // namespace

void init_push(nb::module_& module) {
  nb::class_<PushedSteps>(module, "PushedSteps")
      .def("__init__", &open_steps, nb::arg("run"), nb::arg("series"), nb::arg("ranks"),
           nb::arg("newest_only"), nb::arg("state").none())
      .def("look", &look, nb::arg("most"))
      .def("series_from", &series_from, nb::arg("first"))
      .def("done", &PushedSteps::done, nb::arg("verdict"), nb::call_guard<ReleasedGil>())
      .def_prop_ro("verdict", [](const PushedSteps& steps) { return text(steps.verdict()); })
      .def_prop_ro("is_over", &PushedSteps::is_over)
      .def_prop_ro("late", &PushedSteps::late)
      .def_prop_ro("left_out", &left_out)
      .def("damage", [](PushedSteps& steps) { return damage_list(steps.damage()); })
      .def("incomplete", [](const PushedSteps& steps) { return text_list(steps.incomplete()); })
      .def("expired", [](const PushedSteps& steps) { return text_list(steps.expired()); });
}

}  // namespace trainmon
