#include "stats/cuda/launch_table.h"

#include "stats/layout.h"

namespace trainmon::cuda {
namespace {

std::int64_t chunks_of(const Entry& entry) {
  const std::int64_t each = kChunkBytes / item_bytes(entry.dtype);
  return (entry.elements + each - 1) / each;
}
std::int64_t groups_of(std::int64_t chunks) {
  return (chunks + kGroup - 1) / kGroup;
}

constexpr std::size_t kAlign = 16;
std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

}  // namespace

bool describe(const TensorView& tensor, Piece& out, std::string& why) {
  const Layout layout = layout_of(tensor);
  out.entry = {};
  out.entry.data = layout.base;
  out.entry.elements = layout.elements;
  out.entry.multiplicity = layout.multiplicity;
  out.entry.dtype = tensor.dtype;
  out.has_gaps = layout.elements > 0 && !layout.contiguous();
  if (layout.elements > 0 && layout.base == nullptr) {
    why = "no_data";
    return false;
  }
  if (!out.has_gaps) return true;
  if (layout.ndim > kStrides) {
    why = "dimensions";
    return false;
  }
  out.gaps.ndim = layout.ndim;
  for (int d = 0; d < layout.ndim; ++d) {
    out.gaps.sizes[d] = layout.sizes[static_cast<std::size_t>(d)];
    out.gaps.strides[d] = layout.strides[static_cast<std::size_t>(d)];
  }
  return true;
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

Table lay_out(std::vector<Piece>& pieces) {
  Table table;
  std::int64_t chunks = 0;
  std::int64_t partials = 0;
  std::int64_t counters = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    Entry& entry = pieces[i].entry;
    const std::int64_t own = chunks_of(entry);
    entry.first_chunk = static_cast<std::uint32_t>(chunks);
    entry.first_partial = static_cast<std::uint32_t>(partials);
    entry.first_counter = static_cast<std::uint32_t>(counters);
    entry.strides = pieces[i].has_gaps ? static_cast<std::int32_t>(table.strided++) : -1;
    chunks += own;
    const Tree tree = tree_of(own);
    partials += tree.partials;
    counters += tree.counters;
  }
  table.chunks = static_cast<std::uint32_t>(chunks);
  table.need.partials = static_cast<std::size_t>(partials);
  table.need.counters = static_cast<std::size_t>(counters) + kOwnCounters;
  return table;
}

BlobLayout::BlobLayout(std::size_t tensors, std::size_t chunks, std::size_t strided) {
  first_chunk = aligned(tensors * sizeof(Entry));
  coarse = first_chunk + aligned(tensors * sizeof(std::uint32_t));
  gaps = coarse + aligned((chunks / kCoarse + 1) * sizeof(std::uint32_t));
  bytes = gaps + aligned(strided * sizeof(Gaps));
}

void write_blob(const std::vector<Piece>& pieces, const BlobLayout& layout, std::byte* to) {
  auto* entries = reinterpret_cast<Entry*>(to + layout.entries);
  auto* first_chunk = reinterpret_cast<std::uint32_t*>(to + layout.first_chunk);
  auto* coarse = reinterpret_cast<std::uint32_t*>(to + layout.coarse);
  auto* gaps = reinterpret_cast<Gaps*>(to + layout.gaps);
  std::size_t next_coarse = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Entry& entry = pieces[i].entry;
    entries[i] = entry;
    first_chunk[i] = entry.first_chunk;
    const std::size_t end = entry.first_chunk + static_cast<std::size_t>(chunks_of(entry));
    for (; next_coarse * kCoarse < end; ++next_coarse) {
      coarse[next_coarse] = static_cast<std::uint32_t>(i);
    }
    if (entry.strides >= 0) gaps[entry.strides] = pieces[i].gaps;
  }
}

void point_at_counters(Work& work, unsigned* counters) {
  work.drawn = counters;
  work.left = counters + 1;
  work.counters = counters + kOwnCounters;
}

void point_into_blob(Work& work, const BlobLayout& layout, Pointer at) {
  const auto part = [&](std::size_t offset) { return reinterpret_cast<const void*>(at + offset); };
  work.entries = static_cast<const Entry*>(part(layout.entries));
  work.first_chunk = static_cast<const std::uint32_t*>(part(layout.first_chunk));
  work.coarse = static_cast<const std::uint32_t*>(part(layout.coarse));
  work.gaps = static_cast<const Gaps*>(part(layout.gaps));
}

}  // namespace trainmon::cuda
