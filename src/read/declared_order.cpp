// A value holds until the next one of the same rank, optimizer, group and name.
#include "read/declared_order.h"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>

namespace trainmon {

void order_declared(std::vector<ReadDeclared>& declared, const ReadOptions& options) {
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
