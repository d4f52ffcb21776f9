// A diagnosis as JSON.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "answers/diagnose.h"
#include "base/text.h"
#include "model/layers.h"

namespace trainmon {
namespace {

using detect::Finding;

nlohmann::ordered_json number(double value) {
  if (std::isfinite(value)) return value;
  return number_text(value);
}

nlohmann::ordered_json json_of(const Diagnosis& diagnosis, const Finding& one) {
  nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
  std::set<std::string> layers;
  for (const std::uint32_t tensor : one.tensors) {
    const std::string name = diagnosis.tensors[tensor].name;
    tensors.push_back(name);
    const std::string layer = layer_of(name);
    layers.insert(layer.empty() ? name : layer);
  }
  nlohmann::ordered_json out;
  out["step"] = one.step;
  out["restart"] = one.restart;
  out["check"] = detect::check_name(one.check);
  out["stage"] = detect::stage_name(one.stage);
  out["ranks"] = one.ranks;
  out["one_of_ranks"] = one.is_one_of_ranks;
  out["tensors"] = std::move(tensors);
  out["layers"] = layers;
  out["value"] = number(one.value);
  out["bound"] = number(one.bound);
  out["evidence"] = detect::evidence_name(one.evidence);
  out["certain"] = one.certain;
  out["text"] = one.text;
  return out;
}

nlohmann::ordered_json json_of(const std::vector<Series>& lines) {
  auto out = nlohmann::ordered_json::array();
  for (const Series& one : lines) {
    out.push_back(
        {{"kind", one.kind}, {"name", one.name}, {"chunk", one.chunk}, {"element", one.element}});
  }
  return out;
}

nlohmann::ordered_json json_of(const LeftStep& left) {
  nlohmann::ordered_json out;
  out["step"] = left.row.step;
  out["restart"] = left.row.restart;
  out["rank"] = left.row.rank;
  out["ranks"] = left.ranks;
  out["kind"] = left.series.kind;
  out["name"] = left.series.name;
  out["chunk"] = left.series.chunk;
  out["element"] = left.series.element;
  out["measure"] = measure_of(left);
  const auto as_measured = [&](double one) {
    return left.measure == Measure::dtype
               ? nlohmann::ordered_json(dtype_name(static_cast<DType>(one)))
               : number(one);
  };
  out["norm"] = as_measured(left.norm);
  out["before"] = as_measured(left.usual);
  out["unusual"] = number(left.score);
  out["again"] = left.again;
  out["beside"] = left.beside < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(left.beside);
  out["over"] = nullptr;
  if (left.over) out["over"] = json_of(std::vector<Series>{*left.over}).front();
  out["stays"] = left.apart > 0.0;
  out["apart"] = number(left.apart);
  out["lines"] = left.lines;
  out["module"] = left.module;
  out["next"] = json_of(left.next);
  out["loss"] = nullptr;
  if (left.loss) {
    out["loss"] = {{"name", left.loss->name},
                   {"value", number(left.loss->value)},
                   {"before", number(left.loss->usual)},
                   {"ranks", left.loss->ranks}};
  }
  return out;
}

nlohmann::ordered_json json_of(const LeftHistory& left) {
  nlohmann::ordered_json out = json_of(static_cast<const LeftStep&>(left));
  out["others"] = nlohmann::ordered_json::array();
  for (const LeftStep& one : left.others) out["others"].push_back(json_of(one));
  out["less_clear"] = json_of(left.less_clear);
  return out;
}

}  // namespace

std::string diagnosis_json(const Diagnosis& diagnosis) {
  nlohmann::ordered_json out;
  out["verdict"] = nullptr;
  if (diagnosis.verdict) {
    out["verdict"] = json_of(diagnosis, diagnosis.findings[*diagnosis.verdict]);
  }
  out["findings"] = nlohmann::ordered_json::array();
  for (const Finding& one : diagnosis.findings) out["findings"].push_back(json_of(diagnosis, one));
  out["left_out"] = diagnosis.left_out;
  out["checked"] = nlohmann::ordered_json::object();
  for (const Diagnosis::Checked& one : diagnosis.checked) {
    out["checked"][std::string(detect::check_name(one.check))] = one.times;
  }
  out["evidence"] = nlohmann::ordered_json::object();
  for (const Diagnosis::Checked& one : diagnosis.checked) {
    for (std::size_t e = 0; e < one.by.size(); ++e) {
      if (one.by[e] == 0) continue;
      const auto evidence = detect::evidence_name(static_cast<detect::Evidence>(e));
      out["evidence"][std::string(detect::check_name(one.check))][std::string(evidence)] =
          one.by[e];
    }
  }
  out["not_checked"] = nlohmann::ordered_json::array();
  for (const Diagnosis::NotChecked& one : diagnosis.not_checked) {
    out["not_checked"].push_back({{"check", one.check}, {"why", one.why}});
  }
  out["left_history"] = nullptr;
  if (diagnosis.left_history) out["left_history"] = json_of(*diagnosis.left_history);
  for (const Diagnosis::Start& one : diagnosis.starts) {
    nlohmann::ordered_json& start = out["restarts"].emplace_back();
    start["restart"] = one.restart;
    start["verdict"] = nullptr;
    if (one.verdict) start["verdict"] = json_of(diagnosis, diagnosis.findings[*one.verdict]);
  }
  return out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace trainmon
