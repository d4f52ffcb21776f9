// What a transaction of a sink has taken and has not committed yet.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "trainmon/record.h"

namespace trainmon {

// What was taken and is not committed; or, of a transaction that failed, is to be said again.
struct Said {
  std::vector<Outcome> outcomes;
  std::vector<Declared> declared;
  std::vector<Alert> alerts;
  std::vector<Gap> gaps;

  // Of a batch, or of another of these.
  template <typename Records>
  void add(const Records& more) {
    append(outcomes, more.outcomes);
    append(declared, more.declared);
    append(alerts, more.alerts);
    for (const Gap& gap : more.gaps) add_gap(gaps, gap);
  }

 private:
  template <typename Record>
  static void append(std::vector<Record>& list, const std::vector<Record>& more) {
    constexpr std::size_t kMostSaid = 1 << 16;
    const std::size_t room = kMostSaid - std::min(kMostSaid, list.size());
    list.insert(list.end(), more.begin(),
                more.begin() + static_cast<std::ptrdiff_t>(std::min(room, more.size())));
  }
};

struct Counted {
  std::int64_t rows = 0;
  std::uint64_t first_seq = 0;
  std::uint64_t last_seq = 0;

  void add(const Counted& more) {
    if (more.rows == 0) return;
    if (rows == 0) first_seq = more.first_seq;
    last_seq = more.last_seq;
    rows += more.rows;
  }
};

}  // namespace trainmon
