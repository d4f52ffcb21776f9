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
  LayerPart part;
  bool has_layer = false;
  for (std::size_t at = 0; at <= name.size();) {
    const std::size_t dot = std::min(name.find('.', at), name.size());
    const std::string_view component = name.substr(at, dot - at);
    if (at > 0) part.pattern += '.';
    part.pattern += is_number(component) ? "*" : component;
    if (is_number(component) && !has_layer) {
      if (component.size() > kMostDigits) return std::nullopt;
      for (const char digit : component) part.layer = 10 * part.layer + (digit - '0');
      has_layer = true;
    }
    at = dot + 1;
  }
  return has_layer ? std::optional(part) : std::nullopt;
}

}  // namespace trainmon
