// The long forms of the fault campaign (`make torture`), and the lines that tell what they did.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace trainmon {

// TRAINMON_WHOLE=1: every place, instead of the sample that `make test` takes.
inline bool is_whole_campaign() {
  const char* wanted = std::getenv("TRAINMON_WHOLE");
  return wanted != nullptr && std::string(wanted) == "1";
}

// What one part of the campaign did: a line of JSON in the file that TRAINMON_CAMPAIGN names.
class Campaign {
 public:
  Campaign(std::string name, std::string what, std::string unit)
      : name_(std::move(name)), what_(std::move(what)), unit_(std::move(unit)) {}

  void tell(long count, bool has_failed) const {
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin_;
    std::printf("%s: %ld %s in %.0f s\n", name_.c_str(), count, unit_.c_str(), taken.count());
    const char* const path = std::getenv("TRAINMON_CAMPAIGN");
    if (path == nullptr || !is_whole_campaign()) return;
    nlohmann::ordered_json line = {{"campaign", name_}, {"what", what_}, {"count", count}};
    line["unit"] = unit_;
    line["failures"] = has_failed ? 1 : 0;
    line["seconds"] = std::round(taken.count() * 10.0) / 10.0;
    std::ofstream(path, std::ios::app) << line.dump() + "\n";
  }

 private:
  const std::string name_, what_, unit_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace trainmon
