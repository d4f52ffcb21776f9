// Statistics by name, and cells of records that are no rows.
#include "sinks/table.h"

#include <bit>
#include <cmath>

#include "base/text.h"

namespace trainmon {
namespace {

// The payloads' numbers are little-endian (docs/formats.md).
std::uint64_t number_at(const std::vector<std::byte>& bytes, std::size_t index) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    number |= std::to_integer<std::uint64_t>(bytes[8 * index + i]) << (8 * i);
  }
  return number;
}

constexpr std::size_t kHistogramHead = 5;  // low, high, below, above, nans

std::string histogram_cell(const std::vector<std::byte>& bytes) {
  const auto bound = [&](std::size_t index) {
    const auto value = std::bit_cast<double>(number_at(bytes, index));
    return std::isfinite(value) ? number_text(value) : "\"" + number_text(value) + "\"";
  };
  const auto count = [&](std::size_t index) {
    return std::to_string(static_cast<std::int64_t>(number_at(bytes, index)));
  };
  std::string text = "{\"low\":" + bound(0) + ",\"high\":" + bound(1) + ",\"below\":" + count(2) +
                     ",\"above\":" + count(3) + ",\"nans\":" + count(4) + ",\"bins\":[";
  for (std::size_t i = kHistogramHead; i < bytes.size() / 8; ++i) {
    if (i > kHistogramHead) text += ',';
    text += count(i);
  }
  return text + "]}";
}

std::string hex_cell(const std::vector<std::byte>& bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte >> 4)];
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte & std::byte{15})];
  }
  return text;
}

}  // namespace

std::string_view sql_type(CellType type) {
  if (type == CellType::integer) return "INTEGER";
  return type == CellType::real ? "REAL" : "TEXT";
}

const std::vector<std::string>& all_stat_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const StatDefinition& definition : stat_table()) all.emplace_back(definition.name);
    return all;
  }();
  return names;
}

bool is_count(std::string_view statistic) {
  const std::optional<Stat> stat = stat_from_name(statistic);
  return stat && stat_table()[static_cast<std::size_t>(*stat)].type == "int64";
}

std::string_view payload_type_name(PayloadType type) {
  switch (type) {
    case PayloadType::histogram:
      return "histogram";
    case PayloadType::sign_bits:
      return "sign_bits";
    case PayloadType::digest:
      return "digest";
    case PayloadType::text:
      return "text";
    case PayloadType::probe:
      return "probe";
  }
  return "unknown";
}

std::string payload_cell(const Payload& payload) {
  if (payload.type == PayloadType::text) {
    return {reinterpret_cast<const char*>(payload.bytes.data()), payload.bytes.size()};
  }
  const bool is_histogram =
      payload.type == PayloadType::histogram && payload.bytes.size() >= 8 * kHistogramHead;
  return is_histogram ? histogram_cell(payload.bytes) : hex_cell(payload.bytes);
}

std::vector<Cell> declared_cells(const ReadDeclared& declared) {
  const auto integer = [](std::string_view name, std::int64_t value) {
    return Cell{name, std::to_string(value), true};
  };
  const DeclaredValue& value = declared.value;
  const bool is_number = value.type == DeclaredValue::Type::number;
  return {integer("restart", declared.restart),
          integer("rank", declared.rank),
          integer("step", declared.step),
          integer("optimizer", declared.optimizer),
          integer("param_group", declared.group),
          {"name", value.name},
          {"value", is_number ? number_text(value.number) : value.text, is_number},
          {"type", std::string(declared_type_name(value.type))},
          integer("window", declared.window)};
}

std::string declared_tag(std::int32_t optimizer, std::int32_t group, std::string_view name) {
  std::string tag = "declared/";
  if (optimizer != 0) tag += "optimizer_" + std::to_string(optimizer) + "/";
  return tag + "group_" + std::to_string(group) + "/" + std::string(name);
}

}  // namespace trainmon
