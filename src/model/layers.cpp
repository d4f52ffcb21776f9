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

}  // namespace trainmon
