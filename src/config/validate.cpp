// Faults of a Config that was filled in by C++ rather than read from JSON.
#include "config/check.h"

namespace trainmon {

std::vector<std::string> validate(const Config& config) {
  std::vector<std::string> faults;
  for (const Key& key : key_table()) check_value(key, field_value(config, key), faults);
  check_together(config, faults);
  return faults;
}

}  // namespace trainmon
