// Numbers as bytes, and bytes as text.
#include "report/encoding.h"

#include <bit>
#include <cmath>

#include "base/text.h"

namespace trainmon::page {
namespace {

template <typename Number>
void append_planes_of(std::string& to, std::span<const Number> values) {
  for (unsigned shift = 0; shift < 8 * sizeof(Number); shift += 8) {
    for (const Number value : values) to += static_cast<char>(value >> shift & 0xFFU);
  }
}

}  // namespace

void append_planes(std::string& to, std::span<const float> values) {
  std::vector<std::uint32_t> bits;
  bits.reserve(values.size());
  for (const float value : values) bits.push_back(std::bit_cast<std::uint32_t>(value));
  append_planes_of<std::uint32_t>(to, bits);
}

void append_planes(std::string& to, std::span<const std::uint32_t> values) {
  append_planes_of(to, values);
}

void append_planes(std::string& to, std::span<const std::uint16_t> values) {
  append_planes_of(to, values);
}

std::uint16_t half_above(float value) {
  constexpr std::uint16_t kNan = 0x7FC0, kLargest = 0x7F7F;
  if (std::isnan(value)) return kNan;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto half = static_cast<std::uint16_t>(bits >> 16U);  // towards zero
  const bool is_between = (bits & 0xFFFFU) != 0;
  if (!is_between || std::signbit(value) || half == kLargest) return half;
  return static_cast<std::uint16_t>(half + 1);
}

std::uint16_t half_below(float value) {
  constexpr std::uint16_t kSign = 0x8000;
  if (std::isnan(value)) return half_above(value);
  return static_cast<std::uint16_t>(half_above(-value) ^ kSign);
}

std::uint16_t half_near(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value) || std::isinf(value)) return half_above(value);
  const std::uint32_t rounded = bits + 0x7FFFU + (bits >> 16U & 1U);
  return static_cast<std::uint16_t>(rounded >> 16U);
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const auto byte = [&](std::size_t at) {
      return at < bytes.size() ? static_cast<unsigned char>(bytes[at]) : 0U;
    };
    const std::uint32_t three = byte(i) << 16U | byte(i + 1) << 8U | byte(i + 2);
    out += kDigits[three >> 18U & 63U];
    out += kDigits[three >> 12U & 63U];
    out += i + 1 < bytes.size() ? kDigits[three >> 6U & 63U] : '=';
    out += i + 2 < bytes.size() ? kDigits[three & 63U] : '=';
  }
  return out;
}

std::string html_text(std::string_view text) {
  std::string out;
  for (const char c : printable(text)) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string script_safe(std::string json) {
  std::string out;
  out.reserve(json.size());
  for (const char c : json) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace trainmon::page
