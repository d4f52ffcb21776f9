// The table of keys as people read it.
#include "config/config_keys.h"

#include "config/check.h"

namespace trainmon {

std::string_view subject_title(Subject subject) {
  switch (subject) {
    case Subject::what:
      return "What is watched";
    case Subject::when:
      return "Which steps and ranks";
    case Subject::files:
      return "Where rows go";
    case Subject::measuring:
      return "How tensors are measured";
    case Subject::details:
      return "Details of single kinds";
    case Subject::alerts:
      return "Alerts";
    case Subject::limits:
      return "Limits of time and memory";
  }
  return "";
}

std::string_view follower_name(Follower follower) {
  switch (follower) {
    case Follower::nobody:
      return "nobody";
    case Follower::hooks:
      return "hooks";
    case Follower::recorder:
      return "recorder";
    case Follower::alert_rules:
      return "alert_rules";
  }
  return "";
}

std::vector<ConfigKey> config_keys() {
  const Config defaults;
  std::vector<ConfigKey> keys;
  for (const Key& key : key_table()) {
    keys.push_back({std::string(key.name),
                    std::string(key.meaning),
                    expectation(key),
                    {key.choices.begin(), key.choices.end()},
                    field_value(defaults, key).dump(),
                    std::string(key.example),
                    key.subject,
                    key.follower,
                    key.shown == Shown::at_first});
  }
  return keys;
}

}  // namespace trainmon
