// The effective configuration as JSON, and the JSON Schema of what may be written.
#include "config/check.h"

namespace trainmon {
namespace {

using nlohmann::ordered_json;

ordered_json number_schema(const Key& key) {
  return {{"type", "number"}, {"minimum", key.minimum}, {"maximum", key.maximum}};
}

ordered_json integer_schema(const Key& key) {
  return {{"type", "integer"},
          {"minimum", static_cast<std::int64_t>(key.minimum)},
          {"maximum", static_cast<std::int64_t>(key.maximum)}};
}

ordered_json text_schema(const Key& key) {
  switch (key.text) {
    case Text::path:
      return {{"type", "string"}, {"pattern", "^[^\\u0000]*$"}};
    case Text::name_pattern:
      return {{"type", "string"}, {"pattern", kPatternRegex}};
    case Text::choice:
      break;
  }
  return ordered_json::object({{"enum", key.choices}});
}

ordered_json list_schema(const Key& key, ordered_json items) {
  ordered_json schema = {{"type", "array"}, {"items", std::move(items)}, {"uniqueItems", true}};
  if (!key.may_be_empty) schema["minItems"] = 1;
  return schema;
}

struct FieldSchema {
  const Key& key;
  ordered_json operator()(bool Config::*) const {
    return ordered_json::object({{"type", "boolean"}});
  }
  ordered_json operator()(int Config::*) const { return integer_schema(key); }
  ordered_json operator()(std::int64_t Config::*) const { return integer_schema(key); }
  ordered_json operator()(std::optional<std::int64_t> Config::*) const {
    ordered_json schema = integer_schema(key);
    schema["type"] = {"integer", "null"};
    return schema;
  }
  ordered_json operator()(std::optional<double> Config::*) const {
    const ordered_json percent = {
        {"type", "string"}, {"pattern", kPercentRegex}, {"maxLength", kLongestPercent}};
    return {{"anyOf", {number_schema(key), percent, {{"type", "null"}}}}};
  }
  ordered_json operator()(double Config::*) const { return number_schema(key); }
  ordered_json operator()(std::string Config::*) const { return text_schema(key); }
  ordered_json operator()(BackendChoice Config::*) const { return text_schema(key); }
  ordered_json operator()(Overflow Config::*) const { return text_schema(key); }
  ordered_json operator()(std::vector<int> Config::*) const {
    return list_schema(key, integer_schema(key));
  }
  ordered_json operator()(std::vector<std::string> Config::*) const {
    return list_schema(key, text_schema(key));
  }
};

std::string text_of(const ordered_json& document) {
  return document.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string config_to_json(const Config& config) {
  ordered_json document = ordered_json::object();
  for (const Key& key : key_table()) document[std::string(key.name)] = field_value(config, key);
  return text_of(document);
}

std::string config_schema() {
  const Config defaults;
  ordered_json properties = {
      {"$schema", {{"type", "string"}, {"description", "for editors: where this schema is"}}}};
  for (const Key& key : key_table()) {
    ordered_json schema = std::visit(FieldSchema{key}, key.field);
    schema["default"] = field_value(defaults, key);
    schema["description"] = key.meaning;
    properties[std::string(key.name)] = std::move(schema);
  }
  return text_of({{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                  {"title", "trainmon configuration"},
                  {"type", "object"},
                  {"additionalProperties", false},
                  {"properties", std::move(properties)}});
}

}  // namespace trainmon
