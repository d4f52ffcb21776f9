// Optimizer state goes by the optimizer's own names, so "moments" is every kind that is not fixed.
// No kind of a run needs a choice any more, so "all" is every one.
#include "read/kind_selection.h"

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "base/text.h"
#include "model/kinds.h"
#include "trainmon/record.h"

namespace trainmon {
namespace {

bool contains(const auto& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

// The group that takes a kind of a run; the kind itself where it is in none.
std::string_view group_of(std::string_view kind) {
  const Kind* known = known_kind(kind);
  if (known == nullptr || known->is_state) return kMoments;
  return known->group.empty() ? kind : known->group;
}

}  // namespace

bool kind_selected(std::string_view kind, const std::vector<std::string>& asked) {
  return asked.empty() || contains(asked, kind) || contains(asked, group_of(kind)) ||
         contains(asked, kAllKinds);
}

void KindSelection::check(const std::vector<std::string>& present) const {
  // Optimizers name their state as they like: where no kind is known, none can be called wrong.
  if (present.empty()) return;
  std::vector<std::string_view> known(kind_groups().begin(), kind_groups().end());
  known.insert(known.end(), fixed_kinds().begin(), fixed_kinds().end());
  for (const std::string& kind : present) {
    if (!contains(known, kind)) known.push_back(kind);
  }
  for (const std::string& kind : asked_) {
    if (contains(known, kind)) continue;
    std::string text = "unknown kind '" + printable(kind) + "'";
    if (const auto nearest = nearest_name(kind, known)) {
      text += " (did you mean '" + *nearest + "'?)";
    }
    text += "; this run has";
    for (const std::string& name : present) text += " " + printable(name);
    throw std::invalid_argument(text);
  }
}

}  // namespace trainmon
