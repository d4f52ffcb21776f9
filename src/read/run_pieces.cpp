// Pieces of a run: of a rank, and in the order of steps.
#include <algorithm>
#include <limits>

#include "model/wrapping.h"
#include "read/run_stream.h"

namespace trainmon {

std::span<const RunStream::Piece> RunStream::pieces_of(int rank) const {
  return std::ranges::equal_range(pieces_, rank, {}, &Piece::rank);
}

void RunStream::forget(int rank) {
  const auto rank_of = [](const Directory& directory) { return directory.place.rank; };
  for (Directory& directory : std::ranges::equal_range(directories_, rank, {}, rank_of)) {
    directory.log.reset();
    directory.timeline = Timeline();
  }
}

std::vector<RunStream::StepPiece> RunStream::pieces_by_step(std::int64_t rows) const {
  constexpr std::int64_t kManyWindows = 1 << 20;  // more than a piece of a sound log has
  std::vector<StepPiece> pieces;
  for (std::size_t number = 0; number < directories_.size(); ++number) {
    const Directory& directory = directories_[number];
    for (const LogIndex::Piece& piece : directory.log->pieces(rows)) {
      const std::int64_t first = piece.facts.first_window, last = piece.facts.last_window;
      if (last < first) continue;
      StepPiece& one = pieces.emplace_back(
          StepPiece{{piece, directory.place.rank, directory.place.restart, number}});
      const std::int64_t windows = wrapping_difference(last, first);
      one.first_step = std::numeric_limits<std::int64_t>::min();
      if (windows < 0 || windows >= kManyWindows) continue;
      one.first_step = std::numeric_limits<std::int64_t>::max();
      for (const std::int32_t optimizer : directory.wanted->optimizers) {
        for (std::int64_t window = first;; ++window) {
          one.first_step = std::min(one.first_step, directory.timeline.at(optimizer, window).step);
          if (window == last) break;
        }
      }
    }
  }
  std::ranges::stable_sort(pieces, {}, &StepPiece::first_step);
  return pieces;
}

}  // namespace trainmon
