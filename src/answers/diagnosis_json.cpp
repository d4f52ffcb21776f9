// A diagnosis as JSON, and what a finding names as text.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "answers/diagnose.h"
#include "base/text.h"

namespace trainmon {
namespace {

using detect::Finding;

nlohmann::ordered_json number(double value) {
  if (std::isfinite(value)) return value;
  return number_text(value);
}

// "layers.3" of "layers.3.mlp.weight": up to the first number of the name.
std::string layer_of(const std::string& name) {
  std::size_t begin = 0;
  while (begin < name.size()) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string::npos) {
      return name.substr(0, end);
    }
    begin = end + 1;
  }
  const std::size_t last = name.rfind('.');
  return last == std::string::npos ? name : name.substr(0, last);
}

nlohmann::ordered_json json_of(const Diagnosis& diagnosis, const Finding& one) {
  nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
  std::set<std::string> layers;
  for (const std::uint32_t tensor : one.tensors) {
    const std::string name = diagnosis.tensors[tensor].name;
    tensors.push_back(name);
    layers.insert(layer_of(name));
  }
  nlohmann::ordered_json out;
  out["step"] = one.step;
  out["restart"] = one.restart;
  out["check"] = detect::check_name(one.check);
  out["stage"] = detect::stage_name(one.stage);
  out["ranks"] = one.ranks;
  out["tensors"] = std::move(tensors);
  out["layers"] = layers;
  out["value"] = number(one.value);
  out["bound"] = number(one.bound);
  out["evidence"] = detect::evidence_name(one.evidence);
  out["certain"] = one.certain;
  out["text"] = one.text;
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
  return out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string tensors_text(const Diagnosis& diagnosis, const Finding& finding) {
  constexpr std::size_t kShown = 3;
  if (finding.tensors.size() == diagnosis.tensors.size() && finding.tensors.size() > 1) {
    return "all " + grouped(static_cast<std::int64_t>(finding.tensors.size())) + " tensors";
  }
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, finding.tensors.size()); ++i) {
    text += (text.empty() ? "" : ", ") + printable(diagnosis.tensors[finding.tensors[i]].name);
  }
  if (finding.tensors.size() > kShown) {
    text += " and " + std::to_string(finding.tensors.size() - kShown) + " more";
  }
  return text;
}

}  // namespace trainmon
