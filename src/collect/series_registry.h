// All series of this rank: equal series share an id, ids are dense, references never move.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trainmon/record.h"

namespace trainmon {

class SeriesRegistry final : public SeriesTable {
 public:
  // `most`: series beside the one that stands for all beyond; at most kMost.
  explicit SeriesRegistry(std::size_t most = kMost) : most_(std::min(most, kMost)) {}
  ~SeriesRegistry() override;

  // The id of this series, new or known; its name and element are cut as bounded_name() does.
  // overflow() for every new one beyond `most`. Any thread.
  SeriesId add(const Series& series);
  // Of the series of kind "overflow" that stands for all beyond. It follows the windows of the
  // first of them. The pipe counts its rows and drops them.
  SeriesId overflow() const { return static_cast<SeriesId>(most_); }
  // The series equal to `id` but for its dtype; registers it when first asked for. Lock-free after.
  SeriesId with_dtype(SeriesId id, DType dtype);

  // Where a check of a tensor of this series and size begins in the full tensor (stats/check.h).
  // It is nullopt where none is taken: of another kind, or of a shard that is no contiguous
  // range.
  std::optional<std::int64_t> check_from(SeriesId id, std::int64_t elements) const;

  // The flags kMasked and kFirstMasked of a row of an activation, an input, a weight or a buffer; 0
  // of any other kind. The second one in the window in which its rows begin to be so. Lock-free.
  std::uint32_t mask_flags(SeriesId id, const RowState& state, std::int64_t window);

  // The number of these sizes, lock-free when they are the full shape of the series or it had them
  // last; kUnknownShape beyond kShapes different ones.
  ShapeId number_of(SeriesId id, std::span<const std::int64_t> sizes);
  const Shape* shape(ShapeId id) const override;

  // Throws std::out_of_range where add() did not give `id`; the others here take no such one.
  void require(SeriesId id) const {
    if (id >= size()) refuse(id);
  }
  // Any thread, no lock; `id` must have come from add().
  const Series& at(SeriesId id) const override;
  std::size_t size() const override { return size_.load(std::memory_order_acquire); }

  static constexpr std::int64_t kAnySize = std::numeric_limits<std::int64_t>::max();
  static constexpr std::size_t kPageSize = 1024;
  static constexpr std::size_t kPages = 1024;
  static constexpr std::size_t kShapes = 1 << 16;
  static constexpr std::size_t kMost = 1'000'000;

 private:
  using Numbered = std::pair<const Shape, ShapeId>;
  // In the place of a window: no row yet, rows without a mask alone, masked from the first row on.
  static constexpr std::int64_t kNoRow = -3, kNever = -2, kAlways = -1;
  // What may be no fault. It is infinities of an activation, and of a weight that has them from its
  // first row on. Of what the model or a module is given it is whatever is not finite: NaN may
  // stand for what is missing.
  enum class Masks : std::uint8_t {
    none,
    of_activation,
    of_input,
    of_module_input,
    of_weight,
    of_buffer,
  };
  static Masks masks_of(const Series& series);
  struct Entry {
    Series series;
    Masks masks = Masks::none;
    std::atomic<std::int64_t> masked_from{kNoRow};  // the window
    std::optional<Range> checked;  // of the full tensor; up to kAnySize where that is all of it
    std::array<std::atomic<SeriesId>, 15> by_dtype{};  // id + 1; 0 = not asked for yet
    std::atomic<const Numbered*> last_shape{nullptr};
  };
  using Page = std::array<Entry, kPageSize>;

  static_assert(kMost < kPageSize * kPages);

  [[noreturn]] static void refuse(SeriesId id);
  Entry& entry(SeriesId id) const;
  SeriesId put(std::string key, const Series& series);

  const std::size_t most_;
  std::mutex mutex_;
  std::unordered_map<std::string, SeriesId> ids_;
  std::array<std::atomic<Page*>, kPages> pages_{};
  std::atomic<std::size_t> size_{0};

  mutable std::mutex shapes_mutex_;
  std::map<Shape, ShapeId> shapes_;             // its nodes never move
  std::vector<const Shape*> shapes_by_number_;  // from kFirstShape on
};

}  // namespace trainmon
