// A value holds until the next one of the same rank, optimizer, group and name.
#include "read/declared_order.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

namespace trainmon {
namespace {

// Of the steps of one start that a newer one went through again: the first later one that it did
// not. Steps are asked for in their order.
class NextShown {
 public:
  std::optional<std::int64_t> from(const Restarts& restarts, const ReadDeclared& one) {
    const std::tuple log(one.restart, one.rank, one.optimizer);
    const bool is_known = log == log_ && one.step >= from_ && one.step <= shown_.value_or(one.step);
    if (!is_known) {
      log_ = log;
      from_ = one.step;
      shown_ = restarts.shown_from(one.rank, one.optimizer, one.step, one.restart);
    }
    return shown_;
  }

 private:
  std::tuple<int, int, std::int32_t> log_ = {-1, -1, -1};
  std::int64_t from_ = 0;
  std::optional<std::int64_t> shown_;
};

// Of several values that hold from one later step on, the last one does.
void show_later(std::vector<ReadDeclared>& declared, const Restarts& restarts) {
  const auto is_shown = [&](const ReadDeclared& one) {
    return restarts.is_newest(one.rank, one.optimizer, one.step, one.restart);
  };
  const auto of_log = [](const ReadDeclared& one) {
    return std::tuple(one.restart, one.rank, one.optimizer, one.step);
  };
  const auto place_of = [](const ReadDeclared& one) {
    return std::tuple(one.restart, one.rank, one.optimizer, one.group, one.step, one.value.name);
  };
  const auto first = std::stable_partition(declared.begin(), declared.end(), is_shown);
  std::vector<ReadDeclared> hidden(std::make_move_iterator(first),
                                   std::make_move_iterator(declared.end()));
  declared.erase(first, declared.end());
  std::ranges::stable_sort(hidden, {}, of_log);
  NextShown next;
  std::map<decltype(place_of(hidden.front())), ReadDeclared> later;
  for (ReadDeclared& one : hidden) {
    const std::optional<std::int64_t> shown = next.from(restarts, one);
    if (!shown) continue;
    one.step = *shown;
    later.insert_or_assign(place_of(one), std::move(one));
  }
  if (later.empty()) return;
  for (const ReadDeclared& one : declared) later.erase(place_of(one));
  for (auto& [place, one] : later) declared.push_back(std::move(one));
}

}  // namespace

void order_declared(std::vector<ReadDeclared>& declared, const Restarts& restarts,
                    const ReadOptions& options) {
  show_later(declared, restarts);
  std::erase_if(declared, [&](const ReadDeclared& one) {
    return one.step > options.last_step.value_or(one.step);
  });
  std::stable_sort(
      declared.begin(), declared.end(), [](const ReadDeclared& a, const ReadDeclared& b) {
        return std::tie(a.step, a.restart, a.rank) < std::tie(b.step, b.restart, b.rank);
      });
  // A value that holds is declared again before the segment with its declaration is deleted.
  std::set<std::tuple<int, int, int, int, std::int64_t, std::string>> told;
  std::erase_if(declared, [&](const ReadDeclared& one) {
    return one.window >= 0 && !told.emplace(one.restart, one.rank, one.optimizer, one.group,
                                            one.window, one.value.name)
                                   .second;
  });
  if (!options.first_step) return;
  std::set<std::tuple<int, int, int, std::string>> followed;
  for (std::size_t i = declared.size(); i-- > 0;) {
    ReadDeclared& one = declared[i];
    if (one.step > *options.first_step) continue;
    const bool is_new = followed.emplace(one.rank, one.optimizer, one.group, one.value.name).second;
    if (!is_new) one.rank = -1;
  }
  std::erase_if(declared, [](const ReadDeclared& one) { return one.rank < 0; });
}

}  // namespace trainmon
