// Every configuration key in words, for people who ask.
#pragma once

#include <string>
#include <vector>

namespace trainmon {

struct ConfigKey {
  std::string name;
  std::string meaning;
  std::string expectation;           // "an integer of at least 1, or null"
  std::vector<std::string> choices;  // empty: no fixed ones
  std::string fallback;              // the default, as JSON
  std::string example;               // a value other than the default, as JSON
};
// In the order of the table that parser and schema are made from.
std::vector<ConfigKey> config_keys();

}  // namespace trainmon
