#include "stats/cuda/launch_table.h"

#include <algorithm>
#include <span>

#include "stats/layout.h"

namespace trainmon::cuda {
namespace {

std::int64_t chunks_of(const Entry& entry) {
  return (entry.elements * item_bytes(entry.dtype) + kChunkBytes - 1) / kChunkBytes;
}
std::int64_t groups_of(std::int64_t chunks) {
  return (chunks + kGroup - 1) / kGroup;
}

bool has_gaps(const Layout& layout) {
  return layout.elements > 0 && !layout.contiguous();
}
Entry entry_of(const Layout& layout, DType dtype, Pieces& to) {
  Entry entry = {};
  entry.data = layout.base;
  entry.elements = layout.elements;
  entry.multiplicity = layout.multiplicity;
  entry.dtype = dtype;
  entry.strides = -1;
  if (!has_gaps(layout)) return entry;
  entry.strides = static_cast<std::int32_t>(to.gaps.size());
  Gaps& gaps = to.gaps.emplace_back();
  gaps.ndim = layout.ndim;
  for (int d = 0; d < layout.ndim; ++d) {
    gaps.sizes[d] = layout.sizes[static_cast<std::size_t>(d)];
    gaps.strides[d] = layout.strides[static_cast<std::size_t>(d)];
  }
  return entry;
}

// Whether both go through the same elements in the same order.
bool is_same(const Layout& a, const Layout& b) {
  if (a.elements == 0) return true;
  if (a.base != b.base || a.elements != b.elements || a.ndim != b.ndim) return false;
  const auto ndim = static_cast<std::size_t>(a.ndim);
  return std::ranges::equal(std::span(a.sizes).first(ndim), std::span(b.sizes).first(ndim)) &&
         std::ranges::equal(std::span(a.strides).first(ndim), std::span(b.strides).first(ndim));
}

constexpr std::size_t kAlign = 16;
std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

}  // namespace

const char* describe(const TensorView& tensor, Pieces& to) {
  const Layout layout = layout_of(tensor);
  if (layout.elements > 0 && layout.base == nullptr) return "no_data";
  if (has_gaps(layout) && layout.ndim > kStrides) return "dimensions";
  to.entries.push_back(entry_of(layout, tensor.dtype, to));
  return nullptr;
}

std::int32_t add_check(const TensorView& tensor, std::int64_t first, Pieces& to) {
  to.checks.resize(to.entries.size());
  const Layout ordered = c_order_of(tensor);
  if (is_same(ordered, layout_of(tensor))) {
    to.checks.back() = {first, Taken::both};
    return kWithState;
  }
  if (ordered.ndim > kStrides) return kNoCheck;
  to.apart.push_back(entry_of(ordered, tensor.dtype, to));
  to.apart_checks.push_back({first, Taken::check});
  return static_cast<std::int32_t>(to.apart.size()) - 1;
}

void join_checks(Pieces& pieces) {
  pieces.checks.resize(pieces.entries.size());
  pieces.entries.insert(pieces.entries.end(), pieces.apart.begin(), pieces.apart.end());
  pieces.checks.insert(pieces.checks.end(), pieces.apart_checks.begin(), pieces.apart_checks.end());
}

Tree tree_of(std::int64_t chunks) {
  Tree tree;
  while (chunks > 1) {
    tree.partials += chunks;
    chunks = groups_of(chunks);
    tree.counters += chunks;
  }
  return tree;
}

Table lay_out(std::vector<Entry>& entries) {
  Table table;
  std::int64_t chunks = 0;
  std::int64_t partials = 0;
  std::int64_t counters = 0;
  for (Entry& entry : entries) {
    const std::int64_t own = chunks_of(entry);
    entry.first_chunk = static_cast<std::uint32_t>(chunks);
    entry.first_partial = static_cast<std::uint32_t>(partials);
    entry.first_counter = static_cast<std::uint32_t>(counters);
    chunks += own;
    if (own == 1) continue;
    const Tree tree = tree_of(own);
    partials += tree.partials;
    counters += tree.counters;
  }
  table.chunks = static_cast<std::uint32_t>(chunks);
  table.need.partials = static_cast<std::size_t>(partials);
  table.need.counters = static_cast<std::size_t>(counters) + kOwnCounters;
  return table;
}

BlobLayout::BlobLayout(std::size_t tensors, std::size_t chunks, std::size_t with_gaps,
                       bool with_checks) {
  first_chunk = aligned(tensors * sizeof(Entry));
  coarse = first_chunk + aligned(tensors * sizeof(std::uint32_t));
  gaps = coarse + aligned((chunks / kCoarse + 1) * sizeof(std::uint32_t));
  checks = gaps + aligned(with_gaps * sizeof(Gaps));
  bytes = checks + aligned(with_checks ? tensors * sizeof(CheckEntry) : 0);
}

void write_blob(const Pieces& pieces, const BlobLayout& layout, std::byte* to) {
  const std::vector<Entry>& entries = pieces.entries;
  std::ranges::copy(entries, reinterpret_cast<Entry*>(to + layout.entries));
  std::ranges::copy(pieces.gaps, reinterpret_cast<Gaps*>(to + layout.gaps));
  if (layout.bytes > layout.checks) {
    std::ranges::copy(pieces.checks, reinterpret_cast<CheckEntry*>(to + layout.checks));
  }
  auto* first_chunk = reinterpret_cast<std::uint32_t*>(to + layout.first_chunk);
  auto* coarse = reinterpret_cast<std::uint32_t*>(to + layout.coarse);
  std::size_t next_coarse = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    first_chunk[i] = entries[i].first_chunk;
    const std::size_t end =
        entries[i].first_chunk + static_cast<std::size_t>(chunks_of(entries[i]));
    for (; next_coarse * kCoarse < end; ++next_coarse) {
      coarse[next_coarse] = static_cast<std::uint32_t>(i);
    }
  }
}

void point_at_counters(Work& work, unsigned* counters) {
  work.drawn = counters;
  work.left = counters + 1;
  work.counters = counters + kOwnCounters;
}

void point_into_blob(CheckedWork& work, const BlobLayout& layout, Pointer at) {
  const auto part = [&](std::size_t offset) { return reinterpret_cast<const void*>(at + offset); };
  work.entries = static_cast<const Entry*>(part(layout.entries));
  work.first_chunk = static_cast<const std::uint32_t*>(part(layout.first_chunk));
  work.coarse = static_cast<const std::uint32_t*>(part(layout.coarse));
  work.gaps = static_cast<const Gaps*>(part(layout.gaps));
  work.checks = static_cast<const CheckEntry*>(part(layout.checks));
}

}  // namespace trainmon::cuda
