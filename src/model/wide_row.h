// The wide row: what every table of rows has as columns before the statistics. A column is a named
// field, a member of the row or of its series. Readers and writers visit the fields; no column is
// known by its number.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include "trainmon/read_row.h"

namespace trainmon {

// 64 bits that are equal where two tensors hold the same bits. A double would lose some of them.
enum class Fingerprint : std::uint64_t {};
// "0x" and sixteen hexadecimal digits, which no reader of tables takes for a number.
std::string fingerprint_text(Fingerprint fingerprint);
// nullopt: the text is none.
std::optional<Fingerprint> fingerprint_from(std::string_view text);

// How a table holds a column.
enum class CellType : std::uint8_t { integer, real, text, fingerprint };

template <typename T>
constexpr CellType cell_type() {
  if (std::is_integral_v<T>) return CellType::integer;
  if (std::is_same_v<T, double>) return CellType::real;
  return std::is_same_v<T, std::optional<Fingerprint>> ? CellType::fingerprint : CellType::text;
}

// Whether a member of this type may be unknown. Files of earlier versions may lack its column.
template <typename T>
inline constexpr bool kMayBeUnknown =
    std::is_same_v<T, const Shape*> || std::is_same_v<T, std::optional<Fingerprint>>;

// What an answer about one row shows of it (JSON of the command line, Row in Python).
enum class InAnswer : bool { no, yes };

template <typename Owner, typename T>
struct Field {
  std::string_view name;
  T Owner::*member;
  InAnswer in_answer;

  template <typename Row>
  constexpr const T& of(const Row& row, const Series& series) const {
    if constexpr (std::is_same_v<Owner, Series>) {
      return series.*member;
    } else {
      return row.*member;
    }
  }
};
template <typename Owner, typename T>
Field(std::string_view, T Owner::*, InAnswer) -> Field<Owner, T>;

// The columns, in their order.
inline constexpr std::tuple kWideRow{
    Field{"restart", &RowPlace::restart, InAnswer::yes},
    Field{"rank", &RowPlace::rank, InAnswer::yes},
    Field{"kind", &Series::kind, InAnswer::yes},
    Field{"chunk", &Series::chunk, InAnswer::yes},
    Field{"name", &Series::name, InAnswer::yes},
    Field{"element", &Series::element, InAnswer::yes},
    Field{"optimizer", &Series::optimizer, InAnswer::yes},
    Field{"step", &RowPlace::step, InAnswer::yes},
    Field{"attempt", &RowPlace::attempt, InAnswer::yes},
    Field{"micro_step", &RowPlace::micro_step, InAnswer::yes},
    Field{"call", &RowPlace::call, InAnswer::yes},
    Field{"seq", &RowPlace::seq, InAnswer::yes},
    Field{"flags", &RowPlace::flags, InAnswer::yes},
    Field{"window", &RowPlace::window, InAnswer::no},
    Field{"accum", &RowPlace::accum, InAnswer::no},
    Field{"fate", &RowPlace::fate, InAnswer::yes},
    Field{"loss_scale", &RowPlace::loss_scale, InAnswer::no},
    Field{"dtype", &Series::dtype, InAnswer::no},
    Field{"replication", &Series::replication, InAnswer::no},
    Field{"shape", &RowPlace::shape, InAnswer::no},
};
template <typename Fields>
inline constexpr std::size_t kFieldCount = std::tuple_size_v<std::remove_cvref_t<Fields>>;

// Calls use(field) with each of them in turn.
template <typename Fields, typename Use>
constexpr void for_each_field(const Fields& fields, const Use& use) {
  std::apply([&](const auto&... field) { (use(field), ...); }, fields);
}

// The same with those of RowPlace alone, or of Series.
template <typename Of, typename Fields, typename Use>
constexpr void for_each_field_of(const Fields& fields, const Use& use) {
  for_each_field(fields, [&]<typename Owner, typename T>(const Field<Owner, T>& field) {
    if constexpr (std::is_same_v<Owner, Of>) use(field);
  });
}

// Calls use(field) with the one that stands at this place; with none where there is no such place.
template <typename Fields, typename Use>
constexpr void use_field(const Fields& fields, std::size_t place, const Use& use) {
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    ((I == place && (use(std::get<I>(fields)), true)) || ...);
  }
  (std::make_index_sequence<kFieldCount<Fields>>());
}

// The names of all, to look them up.
template <typename Fields>
constexpr auto field_names(const Fields& fields) {
  return std::apply([](const auto&... field) { return std::array{field.name...}; }, fields);
}
inline bool is_in_wide_row(std::string_view name) {
  static constexpr auto names = field_names(kWideRow);
  return std::ranges::find(names, name) != names.end();
}

// A member that is text in tables.
inline std::string_view text_of(const std::string& text) {
  return text;
}
inline std::string_view text_of(Fate fate) {
  return fate_name(fate);
}
inline std::string_view text_of(DType dtype) {
  return dtype_name(dtype);
}
inline std::string_view text_of(Replication replication) {
  return replication_name(replication);
}
inline std::string text_of(const Shape* shape) {
  return shape_text(shape);
}

// A cell that holds nothing: what belongs there is not known.
using Unknown = std::monostate;

// Calls put() with what a table holds of a member: std::int64_t, double, std::string_view (for the
// call alone), Fingerprint or Unknown.
template <typename T, typename Put>
decltype(auto) put_cell(const T& member, const Put& put) {
  if constexpr (kMayBeUnknown<T>) {
    if (!member) return put(Unknown());
  }
  if constexpr (cell_type<T>() == CellType::integer) {
    return put(static_cast<std::int64_t>(member));
  } else if constexpr (cell_type<T>() == CellType::real) {
    return put(member);
  } else if constexpr (cell_type<T>() == CellType::fingerprint) {
    return put(*member);
  } else {
    const auto& text = text_of(member);
    return put(std::string_view(text));
  }
}

// The same of a statistic. Doubles hold every count up to 2^53; beyond it a count is given as the
// number it is.
template <typename Put>
decltype(auto) put_statistic(double value, bool is_count, const Put& put) {
  constexpr double kMostExact = 9007199254740992.0;
  if (is_count && value >= -kMostExact && value <= kMostExact) {
    return put(static_cast<std::int64_t>(value));
  }
  return put(value);
}

}  // namespace trainmon
