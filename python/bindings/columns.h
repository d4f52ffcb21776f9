// Records as columns: numbers, or the numbers of texts.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "arrow_export.h"
#include "model/wide_row.h"

namespace trainmon {

// get(record) gives the value.
template <typename T, typename Records, typename Get>
std::shared_ptr<Column> column(std::string_view name, const Records& records, const Get& get) {
  std::vector<T> values;
  values.reserve(records.size());
  for (const auto& record : records) values.push_back(static_cast<T>(get(record)));
  auto out = std::make_shared<Column>();
  out->name = name;
  out->values = std::move(values);
  return out;
}

// get(record) gives the text.
template <typename Records, typename Get>
std::shared_ptr<Column> coded(std::string_view name, const Records& records, const Get& get) {
  TextCoder texts;
  std::string_view last;  // rows side by side mostly have the same text, and in the same memory
  std::int32_t last_code = -1;
  auto out = column<std::int32_t>(name, records, [&](const auto& record) {
    const std::string_view text = get(record);
    if (last_code >= 0 && text.data() == last.data() && text.size() == last.size()) {
      return last_code;
    }
    last = text;
    return last_code = texts.code(text);
  });
  out->texts = texts.texts();
  return out;
}

// The type of the values of a column for a field of the wide row. It is int32, int64 (a seq,
// too), uint32 or double. Fingerprints are uint64, which has all their bits; the numbers of texts
// are int32.
template <typename T>
using FieldValue = std::conditional_t<
    cell_type<T>() == CellType::text, std::int32_t,
    std::conditional_t<cell_type<T>() == CellType::fingerprint, std::uint64_t,
                       std::conditional_t<std::is_same_v<T, std::uint64_t>, std::int64_t, T>>>;

// A field of the wide row; get(record) gives its member.
template <typename T, typename Records, typename Get>
std::shared_ptr<Column> field_column(std::string_view name, const Records& records,
                                     const Get& get) {
  if constexpr (std::is_same_v<T, const Shape*>) {
    std::map<const Shape*, std::string> texts;
    std::pair<const Shape*, std::string_view> last = {nullptr,
                                                      texts[nullptr] = shape_text(nullptr)};
    return coded(name, records, [&](const auto& r) {
      const Shape* const shape = get(r);
      if (shape == last.first) return last.second;
      const auto [known, is_new] = texts.try_emplace(shape);
      if (is_new) known->second = shape_text(shape);
      last = {shape, known->second};
      return last.second;
    });
  } else if constexpr (cell_type<T>() == CellType::text) {
    return coded(name, records, [&](const auto& r) { return std::string_view(text_of(get(r))); });
  } else if constexpr (cell_type<T>() == CellType::fingerprint) {
    auto out = column<FieldValue<T>>(name, records,
                                     [&](const auto& r) { return get(r).value_or(Fingerprint()); });
    for (const auto& record : records) out->are_unknown.push_back(get(record) ? 0 : 1);
    return out;
  } else {
    return column<FieldValue<T>>(name, records, get);
  }
}

}  // namespace trainmon
