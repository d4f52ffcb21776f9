// Bytes as a page can hold them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trainmon::page {

// Numbers as planes: all lowest bytes, then all second ones, and so on, little endian. Bytes that
// are alike lie together, which a compressor likes.
void append_planes(std::string& to, std::span<const float> values);
void append_planes(std::string& to, std::span<const std::uint32_t> values);
void append_planes(std::string& to, std::span<const std::uint16_t> values);

// The upper half of a float: about three digits. What is not such a number becomes the next one
// towards minus infinity, or towards plus infinity, but no infinity.
std::uint16_t half_below(float value);
std::uint16_t half_above(float value);
// The nearest such number, or the infinity that the value is.
std::uint16_t half_near(float value);

// RFC 4648, with padding.
std::string base64(std::string_view bytes);

// printable() text between the tags of HTML or in an attribute.
std::string html_text(std::string_view text);

// JSON that stands in a <script> element and ends none: each "<" is an escape.
std::string script_safe(std::string json);

}  // namespace trainmon::page
