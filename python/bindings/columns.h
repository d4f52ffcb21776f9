// Records as columns: NumPy arrays for numbers, codes and the texts they stand for.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "model/wide_row.h"
#include "offline_call.h"

namespace trainmon {

template <typename T>
nanobind::object array(std::vector<T> values) {
  namespace nb = nanobind;
  auto* owned = new std::vector<T>(std::move(values));
  const nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(owned->data(), {owned->size()}, owner));
}

template <typename T, typename Records, typename Get>
nanobind::object column(const Records& records, const Get& get) {
  std::vector<T> values;
  values.reserve(records.size());
  for (const auto& record : records) values.push_back(static_cast<T>(get(record)));
  return array(std::move(values));
}

// Text as codes and the texts they stand for: (int32 array, list).
template <typename Records, typename Get>
nanobind::object coded(const Records& records, const Get& get) {
  std::map<std::string_view, std::int32_t> known;
  nanobind::list names;
  std::string_view last;  // rows side by side mostly have the same text, and in the same memory
  std::int32_t last_code = -1;
  nanobind::object codes = column<std::int32_t>(records, [&](const auto& record) {
    const std::string_view name = get(record);
    if (last_code >= 0 && name.data() == last.data() && name.size() == last.size()) {
      return last_code;
    }
    const auto [at, is_new] = known.try_emplace(name, static_cast<std::int32_t>(known.size()));
    if (is_new) names.append(text(name));
    last = name;
    return last_code = at->second;
  });
  return nanobind::make_tuple(codes, names);
}

// A field of the wide row as a column; get(record) gives its member. Whole numbers are int32, int64
// (a seq, too) or uint32. Fingerprints are a masked array of uint64, which has all their bits.
template <typename T, typename Records, typename Get>
nanobind::object field_column(const Records& records, const Get& get) {
  if constexpr (std::is_same_v<T, const Shape*>) {
    std::map<const Shape*, std::string> texts;
    std::pair<const Shape*, std::string_view> last = {nullptr,
                                                      texts[nullptr] = shape_text(nullptr)};
    return coded(records, [&](const auto& r) {
      const Shape* const shape = get(r);
      if (shape == last.first) return last.second;
      const auto [known, is_new] = texts.try_emplace(shape);
      if (is_new) known->second = shape_text(shape);
      last = {shape, known->second};
      return last.second;
    });
  } else if constexpr (cell_type<T>() == CellType::text) {
    return coded(records, [&](const auto& r) { return std::string_view(text_of(get(r))); });
  } else if constexpr (cell_type<T>() == CellType::fingerprint) {
    const auto bits = [&](const auto& r) { return get(r).value_or(Fingerprint()); };
    const auto is_unknown = [&](const auto& r) { return !get(r).has_value(); };
    return nanobind::module_::import_("numpy.ma")
        .attr("MaskedArray")(column<std::uint64_t>(records, bits),
                             column<std::uint8_t>(records, is_unknown).attr("view")("bool"));
  } else {
    return column<std::conditional_t<std::is_same_v<T, std::uint64_t>, std::int64_t, T>>(records,
                                                                                         get);
  }
}

}  // namespace trainmon
