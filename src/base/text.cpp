// Number text by std::to_chars, UTF-8 checked by hand (no locale anywhere).
#include "base/text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <vector>

namespace trainmon {
namespace {

std::string special_text(double value) {
  if (std::isnan(value)) return "nan";
  return value > 0 ? "inf" : "-inf";
}

void append_hex(std::string& out, std::uint32_t value, int digits) {
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) {
    out += "0123456789abcdef"[(value >> shift) & 0xF];
  }
}

bool is_unsafe(std::uint32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0x061C || code == 0x200E ||
         code == 0x200F || (code >= 0x2028 && code <= 0x202E) ||
         (code >= 0x2066 && code <= 0x2069) || code == 0xFEFF;
}

bool is_wide(std::uint32_t code) {
  return (code >= 0x1100 && code <= 0x115F) || (code >= 0x2E80 && code <= 0xA4CF) ||
         (code >= 0xAC00 && code <= 0xD7A3) || (code >= 0xF900 && code <= 0xFAFF) ||
         (code >= 0xFE30 && code <= 0xFE6F) || (code >= 0xFF00 && code <= 0xFF60) ||
         (code >= 0xFFE0 && code <= 0xFFE6) || (code >= 0x1F300 && code <= 0x1FAFF) ||
         (code >= 0x20000 && code <= 0x3FFFD);
}

// Optimal string alignment distance.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  const std::size_t width = b.size() + 1;
  std::vector<std::size_t> before(width), last(width), now(width);
  for (std::size_t j = 0; j < width; ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (std::size_t j = 1; j < width; ++j) {
      const std::size_t change = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        now[j] = std::min(now[j], before[j - 2] + 1);
      }
    }
    before.swap(last);
    last.swap(now);
  }
  return last[width - 1];
}

}  // namespace

std::string number_text(double value) {
  if (!std::isfinite(value)) return special_text(value);
  std::array<char, 32> buffer;
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return {buffer.data(), result.ptr};
}

std::string number_text(double value, int significant) {
  if (!std::isfinite(value)) return special_text(value);
  std::array<char, 64> buffer;
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                    std::chars_format::general, std::clamp(significant, 1, 17));
  return {buffer.data(), result.ptr};
}

std::string python_text(double value) {
  if (!std::isfinite(value)) return special_text(value);
  const double size = std::fabs(value);
  const bool is_fixed = size == 0.0 || (size >= 1e-4 && size < 1e16);
  std::array<char, 32> buffer;
  const auto result =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                    is_fixed ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer.data(), result.ptr);
  if (is_fixed && text.find('.') == std::string::npos) text += ".0";
  return text;
}

std::string grouped(std::int64_t value) {
  std::string digits = std::to_string(value);
  const std::size_t first = value < 0 ? 1 : 0;
  for (std::size_t at = digits.size(); at > first + 3;) digits.insert(at -= 3, 1, ',');
  return digits;
}

std::string bytes_text(double bytes) {
  static constexpr std::array<std::string_view, 6> kUnits = {"B",   "KiB", "MiB",
                                                             "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  while (std::abs(bytes) >= 1023.5 && unit + 1 < kUnits.size()) {
    bytes /= 1024.0;
    ++unit;
  }
  const double rounded =
      std::abs(bytes) < 99.95 ? std::round(bytes * 10.0) / 10.0 : std::round(bytes);
  return number_text(rounded) + " " + std::string(kUnits[unit]);
}

std::optional<std::string> nearest_name(std::string_view name,
                                        std::span<const std::string_view> known) {
  // A typo changes a third of the letters at most, and never a word into another.
  std::size_t best = std::max<std::size_t>(1, std::min<std::size_t>(name.size(), 64) / 3) + 1;
  std::optional<std::string> found;
  if (name.empty() || name.size() > 256) return found;
  for (const std::string_view candidate : known) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < best && distance < candidate.size()) {
      best = distance;
      found = std::string(candidate);
    }
  }
  return found;
}

Utf8Char decode_utf8(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<std::uint32_t>(static_cast<unsigned char>(text[i])) : 0u;
  };
  const std::uint32_t lead = byte(at);
  if (at >= text.size()) return {};
  if (lead < 0x80) return {1, lead};
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4) return {};
  std::uint32_t code = lead & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return {};
    code = (code << 6) | (byte(at + i) & 0x3F);
  }
  static constexpr std::array<std::uint32_t, 5> kSmallest = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kSmallest[length] || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return {};
  return {length, code};
}

bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = decode_utf8(text, at).length;
    if (length == 0) return false;
    at += length;
  }
  return true;
}

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    if (c.length == 0) {
      out += "\xEF\xBF\xBD";
      ++at;
      continue;
    }
    if (c.code == '"' || c.code == '\\') {
      out += '\\';
      out += static_cast<char>(c.code);
    } else if (c.code == '\n') {
      out += "\\n";
    } else if (c.code == '\t') {
      out += "\\t";
    } else if (c.code < 0x20 || c.code == 0x7F) {
      out += "\\u";
      append_hex(out, c.code, 4);
    } else {
      out += text.substr(at, c.length);
    }
    at += c.length;
  }
  out += '"';
  return out;
}

std::string json_object(std::span<const std::pair<std::string, std::string>> members) {
  std::string out = "{";
  for (const auto& [name, value] : members) {
    out += out.size() == 1 ? "\n  " : ",\n  ";
    out += json_string(name) + ": ";
    for (const char c : value) {
      out += c;
      if (c == '\n') out += "  ";
    }
  }
  out += out.size() == 1 ? "}" : "\n}";
  return out;
}

std::string json_list(std::span<const std::string> values) {
  std::string out = "[";
  for (const std::string& value : values) {
    if (out.size() > 1) out += ", ";
    out += value;
  }
  return out + "]";
}

std::string list_text(std::span<const std::int64_t> numbers) {
  std::string text = "[";
  for (const std::int64_t number : numbers) {
    if (text.size() > 1) text += ',';
    text += std::to_string(number);
  }
  return text + "]";
}

std::string printable(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    if (c.length == 0 || (c.length == 1 && is_unsafe(c.code))) {
      out += "\\x";
      append_hex(out, static_cast<unsigned char>(text[at]), 2);
      ++at;
      continue;
    }
    if (is_unsafe(c.code)) {
      out += "\\u{";
      append_hex(out, c.code, 4);
      out += '}';
    } else {
      out += text.substr(at, c.length);
    }
    at += c.length;
  }
  return out;
}

std::size_t display_width(std::string_view text) {
  std::size_t width = 0;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    at += std::max<std::size_t>(1, c.length);
    if (c.code >= 0x300 && c.code <= 0x36F) continue;  // combining marks
    width += is_wide(c.code) ? 2 : 1;
  }
  return width;
}

std::string shell_word(std::string_view text) {
  constexpr std::string_view kPlain = "_@%+=:,./-";
  const auto is_plain = [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || kPlain.find(c) != kPlain.npos;
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), is_plain)) return std::string(text);
  const bool has_escapes = printable(text) != text;
  std::string word = has_escapes ? "$'" : "'";
  for (const char c : text) {
    const bool is_ascii = c >= ' ' && c <= '~';
    if (has_escapes && !is_ascii) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\x%02x", static_cast<unsigned char>(c));
      word += escape;
    } else if (c == '\'' || (has_escapes && c == '\\')) {
      word += has_escapes ? std::string{'\\', c} : "'\\''";
    } else {
      word += c;
    }
  }
  return word + "'";
}

}  // namespace trainmon
