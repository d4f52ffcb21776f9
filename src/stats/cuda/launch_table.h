// What a launch tells the kernel: its tensors, their chunks, and where the parts of its memory are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "stats/cuda/driver.h"
#include "stats/cuda/work.h"
#include "trainmon/tensor.h"

namespace trainmon::cuda {

// Tensors without the order of their elements.
struct Pieces {
  std::vector<Entry> entries;  // row and the places in a launch are filled in by it
  std::vector<Gaps> gaps;      // of some of them, by Entry::strides
  std::vector<CheckEntry>
      checks;                // as `entries`, as far as they go: of the rest, no check is taken
  std::vector<Entry> apart;  // of checks alone; a launch with checks has them at its end
  std::vector<CheckEntry> apart_checks;

  bool empty() const { return entries.empty(); }
  std::size_t size() const { return entries.size(); }
  void clear() {
    entries.clear();
    gaps.clear();
    checks.clear();
    apart.clear();
    apart_checks.clear();
  }
};
// Adds a tensor. nullptr, or why nothing was added, in a word: more than kStrides dimensions with
// gaps, or elements without an address.
const char* describe(const TensorView& tensor, Pieces& to);

// Where the check of a tensor is: with its state, or which one of those that are apart.
inline constexpr std::int32_t kNoCheck = -2;
inline constexpr std::int32_t kWithState = -1;
// Has the check of the tensor taken that was described last; `first` is the index of its first
// element in the full tensor. kNoCheck for a layout that the kernel has not.
std::int32_t add_check(const TensorView& tensor, std::int64_t first, Pieces& to);
// Puts those that are apart behind the others, and gives each entry its check.
void join_checks(Pieces& pieces);

// How much of each ring of an arena a launch takes.
struct Need {
  std::size_t rows = 0;
  std::size_t blob = 0;
  std::size_t partials = 0;
  std::size_t counters = 0;
  bool checks = false;  // room for the checks of rows and partial states, too
};

// The first counters of a launch are its own.
inline constexpr std::size_t kOwnCounters = 2;

// Of a tensor of so many chunks: partial states and counters, those of all levels of its tree.
struct Tree {
  std::int64_t partials = 0;
  std::int64_t counters = 0;
};
Tree tree_of(std::int64_t chunks);

struct Table {
  Need need;  // partials and counters; rows and blob depend on who launches
  std::uint32_t chunks = 0;
};
// Fills in the places of every entry.
Table lay_out(std::vector<Entry>& entries);

// Where the parts of a table lie behind each other.
struct BlobLayout {
  std::size_t entries = 0, first_chunk = 0, coarse = 0, gaps = 0, checks = 0, bytes = 0;

  BlobLayout(std::size_t tensors, std::size_t chunks, std::size_t with_gaps,
             bool with_checks = false);
};
void write_blob(const Pieces& pieces, const BlobLayout& layout, std::byte* to);

void point_at_counters(Work& work, unsigned* counters);
void point_into_blob(CheckedWork& work, const BlobLayout& layout, Pointer at);

}  // namespace trainmon::cuda
