// similarities.csv and verdict.json.
#include "directions/directions_output.h"

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "sinks/csv_text.h"

namespace trainmon {
namespace {

using Json = nlohmann::ordered_json;

void append_row(std::string& text, const std::string& name, const std::vector<Agreement>& row) {
  csv_text::append_field(text, name);
  for (const Agreement& one : row) {
    text += ',';
    if (!one.is_compared()) continue;
    text += one.elements == 0 ? "0" : python_text(one.similarity());
  }
  text += "\r\n";
}

void put_counts(Json& object, const Agreement& here) {
  object["similarity"] = here.similarity();
  object["equal"] = here.equal;
  object["elements"] = here.elements;
}

Json suspicion_json(const RankDirections& rank, const Suspicion& one) {
  Json object;
  object["parameter"] = rank.parameters[one.parameter];
  object["step"] = one.step;
  object["rule"] = one.rule == DirectionRule::drop ? "drop" : "first_step";
  put_counts(object, one.here);
  if (one.rule == DirectionRule::drop) {
    object["similarity_before"] = one.before.similarity();
    object["drop"] = one.before.similarity() - one.here.similarity();
  }
  return object;
}

Json remark_json(const Remark& one) {
  Json object;
  if (one.rank) object["rank"] = *one.rank;
  if (!one.parameter.empty()) object["parameter"] = one.parameter;
  if (!one.steps.empty()) object["steps"] = one.steps;
  object["what"] = one.what;
  return object;
}

}  // namespace

std::string similarities_csv(const RankDirections& rank) {
  std::string text = "\xEF\xBB\xBFstep";
  for (const std::int64_t step : rank.steps) text += "," + std::to_string(step);
  text += "\r\n";
  for (std::size_t i = 0; i < rank.parameters.size(); ++i) {
    append_row(text, rank.parameters[i], rank.agreements[i]);
  }
  append_row(text, "summary", rank.summary);
  return text;
}

std::string verdict_json(const RankDirections& rank, const DirectionsReport& report,
                         const DirectionsOptions& options) {
  Json object;
  object["first"] = options.first.native();
  object["second"] = options.second.native();
  object["rank"] = rank.rank ? Json(*rank.rank) : Json(nullptr);
  object["rule"] = {{"first_step_below", 0.97}, {"drop_above", 0.03}};
  object["suspicious"] = !rank.suspicions.empty();
  object["first_bad_step"] =
      rank.suspicions.empty() ? Json(nullptr) : Json(rank.suspicions.front().step);
  object["parameters"] = Json::array();
  object["later"] = Json::array();
  for (const Suspicion& one : rank.suspicions) {
    const bool is_first = one.step == rank.suspicions.front().step;
    object[is_first ? "parameters" : "later"].push_back(suspicion_json(rank, one));
  }
  object["compared"] = {{"steps", rank.steps.size()},
                        {"first_step", rank.steps.front()},
                        {"last_step", rank.steps.back()},
                        {"parameters", rank.parameters.size()}};
  object["not_compared"] = Json::array();
  for (const Remark& one : report.not_compared) object["not_compared"].push_back(remark_json(one));
  for (const Remark& one : rank.not_compared) object["not_compared"].push_back(remark_json(one));
  object["doubts"] = Json::array();
  for (const Remark& one : rank.doubts) object["doubts"].push_back(remark_json(one));
  // Names that are no UTF-8 are shown, not refused.
  return object.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace trainmon
