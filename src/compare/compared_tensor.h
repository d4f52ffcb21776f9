// Tensors and rows of any run, as they are matched with those of another one.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "compare/compare_tolerance.h"
#include "trainmon/record.h"

namespace trainmon {

// Between the parts of ComparedTensor::match, of which the name is the last.
inline constexpr char kMatchSeparator = '\x1f';

// Whether a row of this kind is of what goes in or out of a module.
bool is_of_module(std::string_view kind);
// Kinds whose values jump with a rounding (mg_direction) or are no rows.
bool is_left_out(std::string_view kind);

// Where a row stands among those of its run: restart, step, attempt, rank, seq; of sources that do
// not say, as read.
using FirstPlace = std::array<std::int64_t, 5>;

struct ComparedTensor {
  std::string kind;
  std::int32_t chunk = 0;
  std::string name;  // as the run has it
  std::string element;
  DType dtype = DType::float32;  // of its first row
  bool has_dtype = true;         // false: the source does not say
  std::string match;   // equal for the same tensor of another run: kind, chunk, matched_name()
  FirstPlace first{};  // of its rows
};

// "actv blocks.0 input.0"; the root module is "(root)".
std::string tensor_text(const ComparedTensor& tensor);

struct ComparedRow {
  std::uint32_t tensor = 0;  // of TensorTable
  std::int32_t attempt = 0;
  std::int32_t rank = 0;  // -1: merged
  std::int32_t accum = 0;
  std::int32_t call = 0;
  std::uint64_t seq = 0;  // as executed; of sources that do not say, as read
  ComparedValues values{};

  // Which row of its step it is, but for seq.
  auto identity() const { return std::tie(tensor, attempt, rank, accum, call); }
};

// The tensors of a run, each once, in the order in which they were met.
class TensorTable {
 public:
  explicit TensorTable(bool has_dtypes) : has_dtypes_(has_dtypes) {}

  // The tensor of a series; a new one matches by its name without wrappers.
  std::uint32_t add(const Series& series);
  // A row of it was read; its dtype is that of the first of them.
  void met(std::uint32_t tensor, const FirstPlace& place, DType dtype) {
    ComparedTensor& one = list_[tensor];
    if (has_row_[tensor] != 0 && !(place < one.first)) return;
    has_row_[tensor] = 1;
    one.first = place;
    one.dtype = dtype;
  }
  std::size_t size() const { return list_.size(); }
  ComparedTensor& operator[](std::uint32_t tensor) { return list_[tensor]; }
  const ComparedTensor& operator[](std::uint32_t tensor) const { return list_[tensor]; }
  // Those with rows, by the place of the first one.
  std::vector<std::uint32_t> in_order() const;
  // Two tensors that differ in what looks like a wrapper are two all the same.
  void set_matches();

 private:
  using Key = std::tuple<std::string, std::int32_t, std::string, std::string>;
  const bool has_dtypes_;
  std::vector<ComparedTensor> list_;
  std::vector<char> has_row_;
  std::map<Key, std::uint32_t> by_name_;
};

}  // namespace trainmon
