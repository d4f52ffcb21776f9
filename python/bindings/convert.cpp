// Binds convert.h and compare.h: one call each that takes the options as keywords.
#include "convert/convert.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "compare/compare.h"
#include "convert/staging.h"
#include "gil.h"
#include "init.h"
#include "offline_call.h"
#include "rows.h"

namespace nb = nanobind;

namespace trainmon {
namespace {

nb::dict report_dict(const ConvertReport& report) {
  nb::list rejections;
  for (const RejectedRows& one : report.rejections) {
    rejections.append(nb::make_tuple(text(one.file.native()), one.line, one.rows, text(one.what)));
  }
  nb::list remarks, kinds;
  for (const std::string& remark : report.remarks) remarks.append(text(remark));
  for (const std::string& kind : report.kinds) kinds.append(text(kind));
  nb::dict out;
  out["rows"] = report.rows;
  out["written"] = report.written;
  out["rejected"] = report.rejected;
  out["superseded"] = report.superseded;
  out["left_out"] = report.left_out;
  out["rejections"] = rejections;
  out["remarks"] = remarks;
  out["kinds"] = kinds;
  out["missing_ranks"] = nb::cast(report.missing.ranks);
  out["incomplete"] = nb::cast(report.incomplete);
  return out;
}

nb::dict run_convert(const nb::bytes& from, const std::string& from_format, const nb::bytes& to,
                     const std::string& to_format, std::vector<std::string> kinds,
                     std::vector<std::string> include, std::vector<std::string> exclude,
                     std::vector<int> ranks, std::optional<std::int64_t> first_step,
                     std::optional<std::int64_t> last_step, bool all_restarts, bool merged,
                     std::vector<std::string> stats, std::string time_start, std::string time_end,
                     std::int64_t step_partition, bool micro_steps_are_steps, bool safe_cells,
                     int threads, bool overwrite, const nb::object& progress) {
  ConvertOptions options;
  options.from = path_of(from);
  options.to = path_of(to);
  const std::optional<SourceFormat> source = source_format(from_format);
  if (!source) throw nb::value_error(("from_format: '" + from_format + "' is no format").c_str());
  const std::optional<TargetFormat> target = target_format(to_format);
  if (!target) throw nb::value_error(("to_format: '" + to_format + "' is no format").c_str());
  options.from_format = *source;
  options.to_format = *target;
  options.select = options_of(std::move(kinds), std::move(include), std::move(exclude),
                              std::move(ranks), first_step, last_step);
  options.select.all_restarts = all_restarts;
  options.select.merged = merged;
  options.stats = std::move(stats);
  options.time_start = std::move(time_start);
  options.time_end = std::move(time_end);
  options.step_partition = step_partition;
  options.micro_steps_are_steps = micro_steps_are_steps;
  options.safe_cells = safe_cells;
  options.threads = threads;
  options.overwrite = overwrite;
  return report_dict(run_offline(options, progress, [](const ConvertOptions& o) {
    settle_writers_of(o.from);
    return convert(o);
  }));
}

// The report as JSON.
nb::object run_compare(const nb::bytes& a, const nb::bytes& b, const std::optional<nb::bytes>& null,
                       std::vector<std::string> kinds, std::vector<std::string> include,
                       std::vector<std::string> exclude, std::vector<int> ranks,
                       std::optional<std::int64_t> first_step,
                       std::optional<std::int64_t> last_step, double factor, std::size_t worst) {
  CompareOptions options;
  options.a = path_of(a);
  options.b = path_of(b);
  if (null) options.null = path_of(*null);
  options.select = options_of(std::move(kinds), std::move(include), std::move(exclude),
                              std::move(ranks), first_step, last_step);
  options.factor = factor;
  options.worst = worst;
  std::string json;
  {
    const ReleasedGil release;
    settle_writers_of(options.a);
    settle_writers_of(options.b);
    json = compare_json(compare(options));
  }
  return text(json);
}

}  // namespace

void init_convert(nb::module_& module) {
  nb::class_<Staging>(module, "Staging")
      .def(
          "__init__",
          [](Staging* self, const nb::bytes& to, bool overwrite) {
            new (self) Staging(path_of(to), true, overwrite);
          },
          nb::arg("to"), nb::arg("overwrite"), "of a directory, which is not made")
      .def_prop_ro("path", [](const Staging& self) { return path_text(self.path()); })
      .def("publish", &Staging::publish)
      .def("remove", &Staging::remove);
  module.def("compare", &run_compare, nb::arg("a"), nb::arg("b"), nb::arg("null").none(),
             nb::arg("kinds"), nb::arg("include"), nb::arg("exclude"), nb::arg("ranks"),
             nb::arg("first_step").none(), nb::arg("last_step").none(), nb::arg("factor"),
             nb::arg("worst"));
  module.def("convert", &run_convert, nb::arg("from_path"), nb::arg("from_format"),
             nb::arg("to_path"), nb::arg("to_format"), nb::arg("kinds"), nb::arg("include"),
             nb::arg("exclude"), nb::arg("ranks"), nb::arg("first_step").none(),
             nb::arg("last_step").none(), nb::arg("all_restarts"), nb::arg("merged"),
             nb::arg("stats"), nb::arg("time_start"), nb::arg("time_end"),
             nb::arg("step_partition"), nb::arg("micro_steps_are_steps"), nb::arg("safe_cells"),
             nb::arg("threads"), nb::arg("overwrite"), nb::arg("progress").none());
}

}  // namespace trainmon
