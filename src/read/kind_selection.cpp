// Optimizer state goes by the optimizer's own names, so "moments" is every kind that is not fixed.
#include "read/kind_selection.h"

#include <algorithm>
#include <array>
#include <optional>
#include <stdexcept>

#include "base/text.h"
#include "trainmon/config.h"
#include "trainmon/record.h"

namespace trainmon {
namespace {

constexpr std::array kFixedKinds = {kind::kGradUnreduced,
                                    kind::kGradReduced,
                                    kind::kParamOrigin,
                                    kind::kParamUpdated,
                                    kind::kActv,
                                    kind::kActvGrad,
                                    kind::kCc,
                                    kind::kMgDirection,
                                    kind::kGradMicro,
                                    kind::kUpdateRatio,
                                    kind::kStack,
                                    kind::kAttnEntropy,
                                    kind::kAttnMax,
                                    kind::kAttnMaxLogit,
                                    kind::kStableRank,
                                    kind::kSpectralNorm,
                                    kind::kRouterSimilarity,
                                    kind::kRouterEntropy};
constexpr std::array<std::string_view, 7> kGroups = {
    "grads", "weights", "moments", "activations", "attention", "spectral", "router"};

bool contains(const auto& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

std::vector<std::string> without_groups(const std::vector<std::string>& kinds) {
  std::vector<std::string> plain;
  for (const std::string& kind : kinds) {
    if (!contains(kGroups, kind)) {
      plain.push_back(kind);
    } else if (kind == "moments") {
      plain.push_back(kind);
    } else {
      for (std::string& member : expand_kinds({kind})) plain.push_back(std::move(member));
    }
  }
  return plain;
}

}  // namespace

KindSelection::KindSelection(const std::vector<std::string>& asked)
    : asked_(asked), plain_(without_groups(asked)) {}

bool KindSelection::takes(std::string_view kind) const {
  if (plain_.empty() || contains(plain_, kind)) return true;
  return contains(plain_, "moments") && !contains(kFixedKinds, kind);
}

void KindSelection::check(const std::vector<std::string>& present) const {
  // Optimizers name their state as they like: where no kind is known, none can be called wrong.
  if (present.empty()) return;
  std::vector<std::string_view> known(kGroups.begin(), kGroups.end());
  known.insert(known.end(), kFixedKinds.begin(), kFixedKinds.end());
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
