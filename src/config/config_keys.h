// Every configuration key in words, for people who ask.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trainmon {

// What a key is about: the sections of docs/configuration.md.
enum class Subject : std::uint8_t { what, when, files, measuring, details, alerts, limits };
std::string_view subject_title(Subject subject);

// Who follows when the key changes while a run goes on (trainmon/control.h). nobody: it does not
// change. hooks: the adapter, which puts its hooks on anew. recorder: which steps and ranks are
// recorded, and how much that may be.
enum class Follower : std::uint8_t { nobody, hooks, recorder, alert_rules };
std::string_view follower_name(Follower follower);  // "nobody", "hooks", ...

struct ConfigKey {
  std::string name;
  std::string meaning;
  std::string expectation;           // "an integer of at least 1, or null"
  std::vector<std::string> choices;  // empty: no fixed ones
  std::string fallback;              // the default, as JSON
  std::string example;               // a value other than the default, as JSON
  Subject subject;
  Follower follower;
  bool is_starter;  // a first configuration file has it
};
// In the order of the table that parser and schema are made from.
std::vector<ConfigKey> config_keys();

}  // namespace trainmon
