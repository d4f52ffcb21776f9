#include "model/layers.h"

#include <algorithm>

namespace trainmon {
namespace {

bool is_number(std::string_view part) {
  return !part.empty() &&
         std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

std::string layer_of(std::string_view name) {
  std::size_t parent = 0;
  for (std::size_t at = 0; at < name.size();) {
    const std::size_t dot = std::min(name.find('.', at), name.size());
    if (is_number(name.substr(at, dot - at))) return std::string(name.substr(0, dot));
    if (dot < name.size()) parent = dot;
    at = dot + 1;
  }
  return std::string(name.substr(0, parent));
}

std::optional<LayerPart> part_of(std::string_view name) {
  constexpr std::size_t kMostDigits = 9;
  for (std::size_t at = 0; at < name.size();) {
    const std::size_t dot = std::min(name.find('.', at), name.size());
    const std::string_view component = name.substr(at, dot - at);
    if (is_number(component)) {
      if (component.size() > kMostDigits) return std::nullopt;
      LayerPart part;
      part.pattern.append(name.substr(0, at)).append("*").append(name.substr(dot));
      for (const char digit : component) part.layer = 10 * part.layer + (digit - '0');
      return part;
    }
    at = dot + 1;
  }
  return std::nullopt;
}

}  // namespace trainmon
