// The registry's pages are allocated once and never moved, so that readers need no lock.
#include "collect/series_registry.h"

#include <algorithm>
#include <stdexcept>

#include "collect/name_limits.h"
#include "model/kinds.h"

namespace trainmon {
namespace {

constexpr const char* kOverflowKind = "overflow";

// Everything that makes a series itself, as bytes: two series are equal when their keys are.
std::string identity_of(const Series& series) {
  std::string key;
  const auto text = [&key](const std::string& part) {
    key += std::to_string(part.size());
    key += ':';
    key += part;
  };
  const auto number = [&key](std::int64_t value) {
    key += std::to_string(value);
    key += ',';
  };
  text(series.kind);
  text(series.name);
  text(series.element);
  number(series.chunk);
  number(series.optimizer);
  number(static_cast<std::int64_t>(series.dtype));
  number(static_cast<std::int64_t>(series.space));
  number(static_cast<std::int64_t>(series.replication));
  for (const Range& range : series.ranges) {
    number(range.begin);
    number(range.end);
  }
  key += '|';
  for (const std::int64_t size : series.full_shape) number(size);
  return key;
}

// A box is contiguous where behind the first dimension that it does not have once, all are whole.
std::optional<Range> range_of_box(const Series& series) {
  std::int64_t begin = 0, elements = 1;
  bool must_be_whole = false;
  if (series.ranges.size() != series.full_shape.size()) return std::nullopt;
  for (std::size_t i = 0; i < series.ranges.size(); ++i) {
    const auto [from, to] = series.ranges[i];
    if (must_be_whole && to - from != series.full_shape[i]) return std::nullopt;
    must_be_whole = must_be_whole || to - from != 1;
    begin = begin * series.full_shape[i] + from;
    elements *= to - from;
  }
  return Range{begin, begin + elements};
}

// What the check of a series covers.
std::optional<Range> checked_range(const Series& series) {
  if (!is_checked_kind(series.kind)) return std::nullopt;
  // The element of a step names its formula, that of an input the argument.
  const bool has_element = series.kind == kind::kUpdate || series.kind == kind::kInput;
  if (!series.element.empty() && !has_element) return std::nullopt;
  switch (series.space) {
    case Space::whole:
      return Range{0, SeriesRegistry::kAnySize};
    case Space::box:
      return range_of_box(series);
    case Space::flat:
      if (series.ranges.size() == 1) return series.ranges.front();
      break;
  }
  return std::nullopt;
}

// Of zeros and minus infinities alone, as what is added to logits. No damage leaves that.
bool is_additive_mask(const RowState& state) {
  return state.zeros > 0 && state.sum_sq == 0.0 && state.nans == 0 && state.pos_infs == 0;
}

}  // namespace

SeriesRegistry::Masks SeriesRegistry::masks_of(const Series& series) {
  const std::string_view kind = series.kind;
  if (kind == kind::kCanaryActv) return Masks::of_activation;
  if (kind == kind::kActv) {
    return series.element.starts_with("input") ? Masks::of_module_input : Masks::of_activation;
  }
  if (kind == kind::kInput) return Masks::of_input;
  if (kind == kind::kBuffer) return Masks::of_buffer;
  const bool is_weight = kind == kind::kParamOrigin || kind == kind::kParamUpdated;
  return is_weight ? Masks::of_weight : Masks::none;
}

SeriesRegistry::~SeriesRegistry() {
  for (auto& page : pages_) delete page.load(std::memory_order_relaxed);
}

SeriesRegistry::Entry& SeriesRegistry::entry(SeriesId id) const {
  Page* page = pages_[id / kPageSize].load(std::memory_order_acquire);
  return (*page)[id % kPageSize];
}

void SeriesRegistry::refuse(SeriesId id) {
  throw std::out_of_range("there is no series " + std::to_string(id) +
                          ": add_series() gives the numbers");
}

const Series& SeriesRegistry::at(SeriesId id) const {
  return entry(id).series;
}

SeriesId SeriesRegistry::add(const Series& series) {
  if (series.name.size() > kLongestName || series.element.size() > kLongestName) {
    Series bounded = series;
    bounded.name = bounded_name(series.name);
    bounded.element = bounded_name(series.element);
    return add(bounded);
  }
  std::string key = identity_of(series);
  const std::lock_guard lock(mutex_);
  if (const auto known = ids_.find(key); known != ids_.end()) return known->second;
  const std::size_t size = size_.load(std::memory_order_relaxed);
  if (size > most_) return overflow();
  if (size == most_) {
    Series beyond;
    beyond.kind = kOverflowKind;
    beyond.optimizer = series.optimizer;
    return put(identity_of(beyond), beyond);
  }
  return put(std::move(key), series);
}

// With the lock.
SeriesId SeriesRegistry::put(std::string key, const Series& series) {
  const std::size_t id = size_.load(std::memory_order_relaxed);
  std::atomic<Page*>& page = pages_[id / kPageSize];
  if (page.load(std::memory_order_relaxed) == nullptr) {
    page.store(new Page, std::memory_order_release);
  }
  Entry& fresh = entry(static_cast<SeriesId>(id));
  fresh.series = series;
  fresh.masks = masks_of(series);
  fresh.checked = checked_range(series);
  ids_.emplace(std::move(key), static_cast<SeriesId>(id));  // the last that may fail
  size_.store(id + 1, std::memory_order_release);
  return static_cast<SeriesId>(id);
}

SeriesId SeriesRegistry::with_dtype(SeriesId id, DType dtype) {
  Entry& known = entry(id);
  if (known.series.dtype == dtype || id == overflow()) return id;
  std::atomic<SeriesId>& cached = known.by_dtype[static_cast<std::size_t>(dtype)];
  if (const SeriesId found = cached.load(std::memory_order_acquire); found != 0) return found - 1;
  Series sibling = known.series;
  sibling.dtype = dtype;
  const SeriesId added = add(sibling);
  cached.store(added + 1, std::memory_order_release);
  return added;
}

std::optional<std::int64_t> SeriesRegistry::check_from(SeriesId id, std::int64_t elements) const {
  const std::optional<Range>& range = entry(id).checked;
  if (!range) return std::nullopt;
  const bool has_all = range->end == kAnySize || range->end - range->begin == elements;
  return has_all ? std::optional(range->begin) : std::nullopt;
}

std::uint32_t SeriesRegistry::mask_flags(SeriesId id, const RowState& state, std::int64_t window) {
  Entry& known = entry(id);
  if (known.masks == Masks::none) return 0;
  const bool is_infinite = state.nans == 0 && (state.neg_infs | state.pos_infs) != 0;
  const bool is_input = known.masks == Masks::of_input;
  if (is_input && is_infinite && state.pos_infs == 0) return flag::kMasked;
  const bool is_of_module = known.masks == Masks::of_module_input;
  // A NaN in a buffer may stand for what no forward has put in yet.
  const bool is_of_buffer = known.masks == Masks::of_buffer;
  const bool may_be_nan = is_input || is_of_module || is_of_buffer;
  const bool is_masked = may_be_nan ? state.non_finite() : is_infinite;
  const bool is_kept = known.masks == Masks::of_weight || is_of_buffer;
  const bool may_begin = is_masked && (!is_kept || is_additive_mask(state));
  std::int64_t from = known.masked_from.load(std::memory_order_relaxed);
  if (from == kNoRow || (from == kNever && may_begin)) {
    const bool is_meant = known.masks == Masks::of_activation || (is_of_module && is_infinite);
    const std::int64_t first = is_meant ? kAlways : window;
    const std::int64_t now = !is_masked ? kNever : from == kNoRow ? first : window;
    if (known.masked_from.compare_exchange_strong(from, now, std::memory_order_relaxed)) from = now;
  }
  if (!is_masked || from == kNever) return 0;
  return from == window ? flag::kMasked | flag::kFirstMasked : flag::kMasked;
}

ShapeId SeriesRegistry::number_of(SeriesId id, std::span<const std::int64_t> sizes) {
  Entry& known = entry(id);
  if (std::ranges::equal(known.series.full_shape, sizes)) return kFullShape;
  const Numbered* last = known.last_shape.load(std::memory_order_acquire);
  if (last != nullptr && std::ranges::equal(last->first, sizes)) return last->second;
  const std::lock_guard lock(shapes_mutex_);
  Shape key(sizes.begin(), sizes.end());
  auto found = shapes_.find(key);
  if (found == shapes_.end()) {
    if (shapes_by_number_.size() >= kShapes) return kUnknownShape;
    const auto fresh = static_cast<ShapeId>(kFirstShape + shapes_by_number_.size());
    found = shapes_.emplace(std::move(key), fresh).first;
    shapes_by_number_.push_back(&found->first);
  }
  known.last_shape.store(&*found, std::memory_order_release);
  return found->second;
}

const Shape* SeriesRegistry::shape(ShapeId id) const {
  const std::lock_guard lock(shapes_mutex_);
  const std::size_t place = id - kFirstShape;
  return id < kFirstShape || place >= shapes_by_number_.size() ? nullptr : shapes_by_number_[place];
}

}  // namespace trainmon
