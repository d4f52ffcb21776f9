// Binds report.h: a page in memory, which shows itself or becomes a file.
#include "report/report.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "gil.h"
#include "init.h"
#include "offline_call.h"
#include "rows.h"

namespace nb = nanobind;

namespace trainmon {
namespace {

Report make_report(const nb::bytes& run, const std::optional<nb::bytes>& other,
                   std::vector<std::string> kinds, std::vector<std::string> include,
                   std::vector<std::string> exclude, std::vector<int> ranks,
                   std::optional<std::int64_t> first_step, std::optional<std::int64_t> last_step,
                   std::int64_t max_bytes) {
  ReportOptions options;
  options.select = options_of(std::move(kinds), std::move(include), std::move(exclude),
                              std::move(ranks), first_step, last_step);
  if (other) options.other = path_of(*other);
  options.max_bytes = max_bytes;
  const std::filesystem::path path = path_of(run);
  return run_offline(options, nb::none(), [&](const ReportOptions& given) {
    settle_writers_of(path);
    if (given.other) settle_writers_of(*given.other);
    return report(path, given);
  });
}

nb::str string(std::string_view bytes) {
  return nb::borrow<nb::str>(text(bytes));
}

std::optional<nb::str> place_of(const Diagnosis* found) {
  if (found == nullptr || !found->verdict) return std::nullopt;
  return string(place_text(*found, found->findings[*found->verdict]));
}

std::optional<nb::str> difference_of(const Report& report) {
  if (!report.comparison || !report.comparison->first) return std::nullopt;
  return string(place_text(*report.comparison->first));
}

nb::str words_of(const Report& report) {
  std::string words;
  for (const ReportLine& one : report_lines(report)) {
    words += (words.empty() ? "" : "\n") + one.text;
  }
  return string(words);
}

void save(const Report& report, const nb::bytes& to, bool overwrite) {
  const std::filesystem::path path = path_of(to);
  try {
    const ReleasedGil release;
    write_report(report, path, overwrite);
  } catch (const std::system_error& error) {
    raise_os_error(error);
  }
}

}  // namespace

void init_report(nb::module_& module) {
  nb::class_<Report>(module, "Report")
      .def_prop_ro("html", [](const Report& one) { return string(one.html); })
      .def_prop_ro("frame", [](const Report& one) { return string(report_frame(one)); })
      .def_prop_ro("verdict", [](const Report& one) { return place_of(&one.diagnosis); })
      .def_prop_ro("verdict_b",
                   [](const Report& one) {
                     return place_of(one.other_diagnosis ? &*one.other_diagnosis : nullptr);
                   })
      .def_prop_ro("difference", &difference_of)
      .def_prop_ro("words", &words_of)
      .def("save", &save, nb::arg("path"), nb::arg("overwrite"));
  module.def("report", &make_report, nb::arg("run"), nb::arg("run_b").none(), nb::arg("kinds"),
             nb::arg("include"), nb::arg("exclude"), nb::arg("ranks"), nb::arg("first_step").none(),
             nb::arg("last_step").none(), nb::arg("max_bytes"));
}

}  // namespace trainmon
