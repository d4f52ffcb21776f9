// The text of a ConfigError: one fault per line.
#include "trainmon/error.h"

#include <algorithm>

namespace trainmon {
namespace {

std::string join(const std::vector<std::string>& faults) {
  std::string text =
      "[config] " + std::to_string(faults.size()) + (faults.size() == 1 ? " fault:" : " faults:");
  // A wrong file (a tokenizer's, say) can have thousands; faults() keeps them all.
  constexpr std::size_t kMostShown = 50;
  for (std::size_t i = 0; i < std::min(faults.size(), kMostShown); ++i) text += "\n  " + faults[i];
  if (faults.size() > kMostShown) {
    text += "\n  ... and " + std::to_string(faults.size() - kMostShown) + " more";
  }
  return text;
}

}  // namespace

ConfigError::ConfigError(std::vector<std::string> faults)
    : std::invalid_argument(join(faults)), faults_(std::move(faults)) {}

}  // namespace trainmon
