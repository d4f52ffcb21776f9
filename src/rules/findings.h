// Turns what a rule finds into alerts: few enough for a storm, none lost.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trainmon/rule.h"

namespace trainmon {

class Findings {
 public:
  explicit Findings(const Telling& telling) : telling_(telling) {}

  // One occurrence. `check` is the place of its check among those of the rule. `make` gives the
  // alert and is called only when there is one to be told.
  template <typename Make>
  void add(const RowKey& key, std::int32_t optimizer, std::size_t check, Stat stat,
           std::vector<Alert>& alerts, const Make& make) {
    if (telling_.every) {
      if (has_room(optimizer, key.window)) {
        alerts.push_back(make());
      } else if (rest_++ == 0) {
        first_of_rest_ = make();
      }
      return;
    }
    Seen& seen = seen_[{key.series, check, stat}];
    if (seen.count++ == 0) seen.first = key;
    if ((seen.count & (seen.count - 1)) != 0) return;
    Alert alert = make();
    alert.key = seen.first;
    alert.count = seen.count;
    alerts.push_back(std::move(alert));
  }

  // To be called after the rows of a batch: one alert stands for what had no room.
  void end_batch(std::vector<Alert>& alerts);

 private:
  struct Seen {
    RowKey first;
    std::int64_t count = 0;
  };
  struct Place {
    SeriesId series;
    std::size_t check;
    Stat stat;
    bool operator==(const Place&) const = default;
  };
  struct PlaceHash {
    std::size_t operator()(const Place& place) const noexcept {
      return std::hash<std::uint64_t>()((std::uint64_t{place.series} << 16) ^ (place.check << 8) ^
                                        static_cast<std::uint64_t>(place.stat));
    }
  };
  struct Told {
    std::int64_t window = 0;
    int alerts = 0;
  };

  bool has_room(std::int32_t optimizer, std::int64_t window);

  const Telling telling_;
  std::unordered_map<Place, Seen, PlaceHash> seen_;
  std::map<std::int32_t, Told> told_;  // per optimizer, of its newest window
  std::int64_t rest_ = 0;
  Alert first_of_rest_;
};

}  // namespace trainmon
