// What a comparison found, as JSON for programs and for the picture.
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "compare/compare.h"

namespace trainmon {
namespace {

using Json = nlohmann::ordered_json;

Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json(number_text(value));
}

Json difference(const Difference& found) {
  return {{"step", found.step},
          {"rank", found.rank},
          {"kind", found.kind},
          {"chunk", found.chunk},
          {"name", found.name},
          {"element", found.element},
          {"attempt", found.attempt},
          {"micro_step", found.micro_step},
          {"call", found.call},
          {"stat", found.stat},
          {"a", number(found.a)},
          {"b", number(found.b)},
          {"difference", number(found.difference)},
          {"tolerance", number(found.tolerance)},
          {"ratio", number(found.ratio)}};
}

Json side(const ComparedSide& of) {
  return {{"path", of.path.native()},
          {"format", of.format},
          {"rows", of.rows},
          {"unmatched", of.unmatched},
          {"first_step", of.first_step},
          {"last_step", of.last_step},
          {"ranks", of.ranks},
          {"kinds", of.kinds},
          {"only_here", of.only_here},
          {"rows_only_here", of.rows_only_here},
          {"not_used", of.not_used}};
}

}  // namespace

std::string compare_json(const CompareReport& report) {
  Json out;
  out["first"] = report.first ? difference(*report.first) : Json(nullptr);
  out["rows"] = report.rows;
  out["tensors"] = report.tensors;
  out["rows_beyond"] = report.beyond;
  out["tensors_beyond"] = report.tensors_beyond;
  out["declared"] = Json::array();
  for (const DeclaredDifference& one : report.declared) {
    out["declared"].push_back({{"step", one.step},
                               {"optimizer", one.optimizer},
                               {"param_group", one.group},
                               {"name", one.name},
                               {"a", one.a},
                               {"b", one.b},
                               {"ranks", one.ranks}});
  }
  out["worst"] = Json::array();
  for (const Difference& one : report.worst) out["worst"].push_back(difference(one));
  out["a"] = side(report.a);
  out["b"] = side(report.b);
  out["null"] = report.null ? side(*report.null) : Json(nullptr);
  out["different_size"] = report.different_size;
  out["different_dtype"] = report.different_dtype;
  out["remarks"] = report.remarks;
  out["levels"] = Json::array();
  for (const CompareReport::Level& level : report.levels) {
    out["levels"].push_back({{"kind", level.kind},
                             {"step", level.step},
                             {"ratio", number(level.ratio)},
                             {"name", level.name}});
  }
  return out.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace trainmon
