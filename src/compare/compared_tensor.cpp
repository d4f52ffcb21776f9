// A tensor is one whatever the series of its rows: ranks and restarts may have several.
#include "compare/compared_tensor.h"

#include <algorithm>

#include "compare/compare.h"
#include "compare/compared_names.h"

namespace trainmon {
namespace {

std::string match_of(const ComparedTensor& tensor, const std::string& name) {
  return tensor.kind + kMatchSeparator + std::to_string(tensor.chunk) + kMatchSeparator +
         matched_name(name, tensor.element);
}

}  // namespace

bool is_of_module(std::string_view kind) {
  return kind == kind::kActv || kind == kind::kActvGrad;
}

bool is_left_out(std::string_view kind) {
  return kind == kind::kMgDirection || kind == kind::kUpdateRatio || kind == kind::kStack;
}

std::string tensor_text(const ComparedTensor& tensor) {
  return tensor.kind + " " + (tensor.name.empty() ? "(root)" : tensor.name) +
         (tensor.element.empty() ? "" : " " + tensor.element);
}

std::uint32_t TensorTable::add(const Series& series) {
  const auto next = static_cast<std::uint32_t>(list_.size());
  const auto [known, is_new] =
      by_name_.try_emplace({series.kind, series.chunk, series.name, series.element}, next);
  if (!is_new) return known->second;
  ComparedTensor& tensor = list_.emplace_back();
  tensor.kind = series.kind;
  tensor.chunk = series.chunk;
  tensor.name = series.name;
  tensor.element = series.element;
  tensor.dtype = series.dtype;
  tensor.has_dtype = has_dtypes_;
  tensor.match = match_of(tensor, unwrapped_name(tensor.name));
  has_row_.push_back(0);
  return next;
}

std::vector<std::uint32_t> TensorTable::in_order() const {
  std::vector<std::uint32_t> order;
  for (std::uint32_t i = 0; i < list_.size(); ++i) {
    if (has_row_[i] != 0) order.push_back(i);
  }
  std::ranges::stable_sort(order, {}, [this](std::uint32_t i) { return list_[i].first; });
  return order;
}

void TensorTable::set_matches() {
  std::map<std::string, int> uses;
  const std::vector<std::uint32_t> order = in_order();
  for (const std::uint32_t i : order) {
    list_[i].match = match_of(list_[i], unwrapped_name(list_[i].name));
    ++uses[list_[i].match];
  }
  for (const std::uint32_t i : order) {
    if (uses[list_[i].match] > 1) list_[i].match = match_of(list_[i], list_[i].name);
  }
}

}  // namespace trainmon
