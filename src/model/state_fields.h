// Walks the table of the fields of a row's state, on the host and on a device.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "model/both.h"
#include "trainmon/stat.h"

namespace trainmon {

inline constexpr std::size_t kStateFieldCount = std::tuple_size_v<decltype(kStateFields)>;

template <typename T>
constexpr T type_of(const StateField<T>&);

// Line i of kStateFields as a type, so that its parts are constants.
template <std::size_t i>
struct StateFieldAt {
  using Type = decltype(type_of(std::get<i>(kStateFields)));
  static constexpr std::string_view name = std::get<i>(kStateFields).name;
  static constexpr Type RowState::*member = std::get<i>(kStateFields).member;
  static constexpr MergeLaw law = std::get<i>(kStateFields).law;
  static constexpr int degree = std::get<i>(kStateFields).degree;
  static constexpr std::uint8_t column = std::get<i>(kStateFields).column;
  static constexpr bool is_integer = std::is_integral_v<Type>;
  static constexpr bool is_count = is_integer && law == MergeLaw::add;  // of all elements
};

template <class Use, std::size_t... i>
TRAINMON_BOTH constexpr void each_state_field(Use& use, std::index_sequence<i...>) {
  (use(StateFieldAt<i>{}), ...);
}
// Calls use(field) for every line, in order; `field` is a StateFieldAt.
template <class Use>
TRAINMON_BOTH constexpr void each_state_field(Use&& use) {
  each_state_field(use, std::make_index_sequence<kStateFieldCount>{});
}

struct AnyField {
  template <typename T>
  constexpr operator T() const;
};
template <std::size_t... i>
constexpr bool state_has_fields(std::index_sequence<i...>) {
  return requires {
    RowState{(static_cast<void>(i), AnyField{})...};
  };
}
static_assert(!state_has_fields(std::make_index_sequence<kStateFieldCount + 1>()),
              "a field of RowState has no line in kStateFields");

// NaN equals the same NaN, and -0.0 is not 0.0.
inline bool same_bits(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}
inline bool same_bits(const RowState& a, const RowState& b) {
  bool same = true;
  each_state_field([&](auto field) {
    if constexpr (field.is_integer) {
      same = same && a.*field.member == b.*field.member;
    } else {
      same = same && same_bits(a.*field.member, b.*field.member);
    }
  });
  return same;
}

}  // namespace trainmon
