#include "model/wide_row.h"

#include <charconv>

namespace trainmon {
namespace {

constexpr std::size_t kDigits = 16;

}  // namespace

std::string fingerprint_text(Fingerprint fingerprint) {
  std::string text = "0x";
  for (std::size_t i = kDigits; i-- > 0;) {
    text += "0123456789abcdef"[static_cast<std::uint64_t>(fingerprint) >> (4 * i) & 15];
  }
  return text;
}

std::optional<Fingerprint> fingerprint_from(std::string_view text) {
  if (text.size() != 2 + kDigits || !text.starts_with("0x")) return std::nullopt;
  std::uint64_t bits = 0;
  const auto [end, error] = std::from_chars(text.data() + 2, text.data() + text.size(), bits, 16);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return static_cast<Fingerprint>(bits);
}

}  // namespace trainmon
