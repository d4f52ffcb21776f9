// control.json to Control, and a Control put over the configuration that a run began with.
#include "trainmon/control.h"

#include <array>

#include "config/check.h"

namespace trainmon {
namespace {

using json = nlohmann::json;

constexpr int kFormat = 1;
constexpr std::array<std::string_view, 5> kKeys = {"format", "number", "on", "set",
                                                   "apply_at_step"};
bool is_count(const json& value) {
  return value.is_number_integer() && value >= 0 && value <= kMaxInteger;
}

void check_set(const json& set, std::vector<std::string>& faults) {
  for (const auto& [name, value] : set.items()) {
    const Key* key = find_key(name);
    if (key == nullptr) {
      faults.push_back(unknown_key(name, value, changeable_keys()));
    } else if (key->follower == Follower::nobody) {
      std::string fault =
          name + " = " + value_text(value) + ": does not change while a run goes on; these do:";
      for (std::string_view other : changeable_keys()) fault += " " + std::string(other);
      faults.push_back(fault);
    } else {
      check_value(*key, value, faults);
    }
  }
}

void check_key(const std::string& name, const json& value, std::vector<std::string>& faults) {
  const auto must = [&](bool holds, std::string_view what) {
    if (!holds)
      faults.push_back(name + " = " + value_text(value) + ": must be " + std::string(what));
    return holds;
  };
  if (name == "format") {
    must(value == kFormat, std::to_string(kFormat));
  } else if (name == "number") {
    must(is_count(value), "an integer of at least 0");
  } else if (name == "on") {
    must(value.is_boolean(), "true or false");
  } else if (name == "apply_at_step") {
    must(value.is_null() || is_count(value), "an integer of at least 0, or null");
  } else if (name == "set") {
    if (must(value.is_object(), "an object of configuration keys")) check_set(value, faults);
  } else {
    faults.push_back(unknown_key(name, value, kKeys));
  }
}

}  // namespace

std::filesystem::path control_path(const std::filesystem::path& run) {
  return run / "control.json";
}

std::vector<std::string_view> changeable_keys() {
  std::vector<std::string_view> names;
  for (const Key& key : key_table()) {
    if (key.follower != Follower::nobody) names.push_back(key.name);
  }
  return names;
}

Control control_from_json(std::string_view text) {
  std::vector<std::string> faults;
  const json document = read_object(text, "a control file", faults);
  for (const auto& [name, value] : document.items()) check_key(name, value, faults);
  if (!document.contains("format")) faults.push_back("format is missing: must be 1");
  if (!faults.empty()) throw ConfigError(std::move(faults));
  Control control;
  control.number = document.value("number", control.number);
  control.on = document.value("on", true);
  if (document.contains("set")) control.set = document["set"].dump();
  if (const auto step = document.find("apply_at_step");
      step != document.end() && !step->is_null()) {
    control.apply_at_step = step->get<std::int64_t>();
  }
  return control;
}

std::string control_to_json(const Control& control) {
  nlohmann::ordered_json value;
  value["format"] = kFormat;
  value["number"] = control.number;
  value["on"] = control.on;
  value["set"] = json::parse(control.set);
  value["apply_at_step"] = control.apply_at_step ? json(*control.apply_at_step) : json(nullptr);
  return value.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

Config with_control(const Config& config, const Control& control) {
  Config result = config;
  std::vector<std::string> faults;
  const json set = read_object(control.set, "set", faults);
  check_set(set, faults);
  if (faults.empty()) {
    for (const auto& [name, value] : set.items()) set_field(result, *find_key(name), value);
    check_together(result, faults);
  }
  if (!faults.empty()) throw ConfigError(std::move(faults));
  return result;
}

}  // namespace trainmon
