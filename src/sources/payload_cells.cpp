#include "sources/payload_cells.h"

#include <array>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "model/histogram.h"
#include "sinks/table.h"
#include "sources/csv_records.h"

namespace trainmon {
namespace {

using nlohmann::json;

// A number, or one that JSON does not have, as a string.
double bound(const json& value) {
  if (value.is_number()) return value.get<double>();
  double number = 0.0;
  if (!parse_number(value.get_ref<const std::string&>(), number)) {
    throw std::invalid_argument("no number");
  }
  return number;
}

std::vector<std::byte> histogram_from_cell(std::string_view cell) {
  if (is_too_deep(cell)) throw std::invalid_argument("too deep");
  const json value = json::parse(cell);
  Histogram histogram;
  histogram.low = bound(value.at("low"));
  histogram.high = bound(value.at("high"));
  histogram.below = value.at("below").get<std::int64_t>();
  histogram.above = value.at("above").get<std::int64_t>();
  histogram.nans = value.at("nans").get<std::int64_t>();
  histogram.bins = value.at("bins").get<std::vector<std::int64_t>>();
  return histogram_bytes(histogram);
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

std::optional<std::vector<std::byte>> bytes_from_hex(std::string_view cell) {
  if (cell.size() % 2 != 0) return std::nullopt;
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < cell.size(); i += 2) {
    const int high = hex_digit(cell[i]), low = hex_digit(cell[i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    bytes.push_back(static_cast<std::byte>(high * 16 + low));
  }
  return bytes;
}

}  // namespace

std::optional<Payload> payload_from_cell(std::string_view type, std::string_view cell) {
  Payload payload;
  constexpr std::array kTypes = {PayloadType::histogram, PayloadType::sign_bits,
                                 PayloadType::digest, PayloadType::text, PayloadType::probe};
  const auto known = std::find_if(kTypes.begin(), kTypes.end(),
                                  [&](PayloadType t) { return payload_type_name(t) == type; });
  if (known == kTypes.end()) return std::nullopt;
  payload.type = *known;
  if (payload.type == PayloadType::text) {
    const auto* first = reinterpret_cast<const std::byte*>(cell.data());
    payload.bytes.assign(first, first + cell.size());
    return payload;
  }
  if (payload.type == PayloadType::histogram && cell.starts_with('{')) {
    try {
      payload.bytes = histogram_from_cell(cell);
    } catch (const std::exception&) {  // no JSON, or not this JSON
      return std::nullopt;
    }
    return payload;
  }
  std::optional<std::vector<std::byte>> bytes = bytes_from_hex(cell);
  if (!bytes) return std::nullopt;
  payload.bytes = std::move(*bytes);
  return payload;
}

}  // namespace trainmon
