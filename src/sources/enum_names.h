// Enumerators by the names that files hold.
#pragma once

#include <optional>
#include <string_view>

namespace trainmon {

// The enumerator up to `last` whose name(enumerator) is `text`.
template <typename Enum, typename Name>
std::optional<Enum> enum_from_name(std::string_view text, Enum last, const Name& name) {
  for (int i = 0; i <= static_cast<int>(last); ++i) {
    if (name(static_cast<Enum>(i)) == text) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

}  // namespace trainmon
