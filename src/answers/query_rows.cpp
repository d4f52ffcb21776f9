// A cell takes 8 bytes, whatever its type. What holds for all rows of a series is not kept with
// them.
#include "answers/query_rows.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <string>
#include <variant>

#include "base/text.h"
#include "trainmon/stat.h"

namespace trainmon {
namespace {

constexpr std::size_t kFields = kFieldCount<decltype(kWideRow)>;
static_assert(kFields + kStatCount < 63, "SQLite has no bit for it");

bool is_used(UsedColumns used, std::size_t column) {
  return (used >> column & 1) != 0;
}

template <typename T>
T member_of(std::uint64_t cell) {
  T member{};
  static_assert(sizeof member <= sizeof cell);
  std::memcpy(&member, &cell, sizeof member);
  return member;
}

// Values as SQLite orders them: whole numbers, texts, blobs.
using SortKey = std::variant<std::int64_t, std::string, std::vector<unsigned char>>;
struct KeyOf {
  SortKey operator()(std::int64_t value) const { return value; }
  SortKey operator()(std::string_view text) const {
    if (is_utf8(text)) return std::string(text);
    return std::vector<unsigned char>(text.begin(), text.end());
  }
};

SortKey key_of(const Series& series, int column) {
  SortKey key;
  use_field(kWideRow, static_cast<std::size_t>(column),
            [&]<typename Owner, typename T>(const Field<Owner, T>& field) {
              if constexpr (std::is_same_v<Owner, Series>) {
                key = put_cell(series.*field.member, KeyOf());
              }
            });
  return key;
}

}  // namespace

QueryRows::QueryRows(const std::vector<Series>& series, UsedColumns used)
    : series_(&series), place_(kFields + kStatCount, kNotKept) {
  std::size_t column = 0;
  // A field's member is known where its type is: a function for each.
  const auto add_fields = [&]<std::size_t... I>(std::index_sequence<I...>) {
    const auto add_field = [&]<std::size_t i>(std::integral_constant<std::size_t, i>) {
      if (!is_used(used, column++)) return;
      fields_.push_back(std::get<i>(kWideRow).name);
      if constexpr (requires(const ReadRow& row) { row.*std::get<i>(kWideRow).member; }) {
        place_[i] = cell_of_.size();
        cell_of_.push_back([](const ReadRow& row) {
          const auto& member = row.*std::get<i>(kWideRow).member;
          std::uint64_t cell = 0;
          static_assert(sizeof member <= sizeof cell);
          std::memcpy(&cell, &member, sizeof member);
          return cell;
        });
      }
    };
    (add_field(std::integral_constant<std::size_t, I>()), ...);
  };
  add_fields(std::make_index_sequence<kFields>());
  for (std::size_t i = 0; i < kStatCount; ++i) {
    if (!is_used(used, kFields + i)) continue;
    place_[kFields + i] = cell_of_.size() + stats_.size();
    stats_.push_back(stat_table()[i].stat);
  }
}

bool QueryRows::is_of_series(int column) {
  bool is = false;
  use_field(kWideRow, static_cast<std::size_t>(column),
            [&]<typename Owner, typename T>(const Field<Owner, T>&) {
              is = std::is_same_v<Owner, Series>;
            });
  return is;
}

std::size_t QueryRows::bytes_of_row(UsedColumns used) {
  std::size_t bytes = 2 * sizeof(std::uint32_t);
  for (std::size_t column = 0; column < kFields + kStatCount; ++column) {
    if (!is_used(used, column) || is_of_series(static_cast<int>(column))) continue;
    bytes += sizeof(std::uint64_t);
  }
  return bytes;
}

Columns QueryRows::columns() const {
  return columns_of_cells(fields_, stats_);
}

void QueryRows::add(const ReadRow& row) {
  series_of_.push_back(row.series);
  for (const CellOf cell : cell_of_) cells_.push_back(cell(row));
  for (const Stat stat : stats_) {
    cells_.push_back(std::bit_cast<std::uint64_t>(derive(stat, row.state)));
  }
}

void QueryRows::add(const QueryRows& others) {
  series_of_.insert(series_of_.end(), others.series_of_.begin(), others.series_of_.end());
  cells_.insert(cells_.end(), others.cells_.begin(), others.cells_.end());
}

void QueryRows::sort(std::span<const OrderTerm> order) {
  std::vector<std::vector<SortKey>> keys(series_->size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    for (const OrderTerm& term : order) keys[i].push_back(key_of((*series_)[i], term.column));
  }
  const auto compare = [&](std::uint32_t a, std::uint32_t b) {
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (keys[a][i] == keys[b][i]) continue;
      return (keys[a][i] < keys[b][i]) != order[i].descending ? -1 : 1;
    }
    return 0;
  };
  std::vector<std::uint32_t> sorted(keys.size());
  std::iota(sorted.begin(), sorted.end(), 0u);
  std::ranges::stable_sort(sorted, [&](auto a, auto b) { return compare(a, b) < 0; });
  std::vector<std::uint32_t> ranking(keys.size());  // the same for series that are equal
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    ranking[sorted[i]] =
        ranking[sorted[i - 1]] + (compare(sorted[i - 1], sorted[i]) == 0 ? 0u : 1u);
  }
  std::vector<std::uint32_t> next(keys.size() + 1);  // where the next row of a place goes
  for (const std::uint32_t series : series_of_) ++next[ranking[series] + 1];
  std::partial_sum(next.begin(), next.end(), next.begin());
  order_.resize(size());
  for (std::size_t i = 0; i < size(); ++i) {
    order_[next[ranking[series_of_[i]]]++] = static_cast<std::uint32_t>(i);
  }
}

std::uint64_t QueryRows::cell(std::size_t row, std::size_t column) const {
  const std::size_t place = place_[column];
  if (place == kNotKept) return 0;
  return cells_[row * (cell_of_.size() + stats_.size()) + place];
}

RowPlace QueryRows::place(std::size_t row) const {
  if (!order_.empty()) row = order_[row];
  RowPlace place;
  std::size_t column = 0;
  for_each_field(kWideRow, [&]<typename Owner, typename T>(const Field<Owner, T>& field) {
    const std::size_t number = column++;
    if constexpr (std::is_same_v<Owner, RowPlace>) {
      if (place_[number] != kNotKept) place.*field.member = member_of<T>(cell(row, number));
    }
  });
  return place;
}

void QueryRows::answer(sqlite3_context* context, std::size_t row, int column) const {
  const Answer answer{context};
  const auto number = static_cast<std::size_t>(column);
  if (!order_.empty()) row = order_[row];
  if (number >= kFields) {
    const bool is_count = stat_table()[number - kFields].type == "int64";
    return put_statistic(std::bit_cast<double>(cell(row, number)), is_count, answer);
  }
  use_field(kWideRow, number, [&]<typename Owner, typename T>(const Field<Owner, T>& field) {
    if constexpr (std::is_same_v<Owner, Series>) {
      put_cell((*series_)[series_of_[row]].*field.member, answer);
    } else {
      put_cell(member_of<T>(cell(row, number)), answer);
    }
  });
}

}  // namespace trainmon
