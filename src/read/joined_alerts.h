// Alerts as they were found: a repeat comes as a further record with a larger count.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "trainmon/read.h"

namespace trainmon {

class JoinedAlerts {
 public:
  // Adds an alert to `list`, or its count to the one that it repeats.
  void add(ReadAlert alert, std::vector<ReadAlert>& list) {
    const Alert& found = alert.alert;
    const Key key(alert.restart, alert.rank, found.key.series, found.key.seq, found.rule,
                  found.stat);
    const auto [known, is_new] = places_.try_emplace(key, list.size());
    if (is_new) {
      list.push_back(std::move(alert));
    } else {
      std::int64_t& count = list[known->second].alert.count;
      count = std::max(count, found.count);
    }
  }

 private:
  using Key = std::tuple<int, int, std::uint32_t, std::uint64_t, std::string, std::string>;
  std::map<Key, std::size_t> places_;
};

}  // namespace trainmon
