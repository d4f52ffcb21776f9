// Which rows of a run that grows were read before and are the same, and which ones are new.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "read/run_stream.h"

namespace trainmon {

// One thread. Memory is that of the series and gaps, not of rows.
class RunGrowth {
 public:
  // Sets apart what is new in `stream`, which is the same run as before, opened again. False
  // where the rows that were given as settled are not all there as they were. Reasons are another
  // run of that name, a new rank, restart, series or gap, a restart that went through steps
  // again, and missing files. Then all rows are new. A log may have been compacted or cut into
  // segments.
  bool look(const RunStream& stream);
  // Everything is new at the next look.
  void forget() { read_.clear(); }

  // By rank, restart, and in the order of writing. settled(): rows that stay as they are and were
  // not given before. open(): those behind them, whose steps are not sure yet. Both are of the
  // newest stream.
  const std::vector<RunStream::Piece>& settled() const { return settled_; }
  const std::vector<RunStream::Piece>& open() const { return open_; }

 private:
  struct Read {
    std::size_t batches = 0;
    std::uint64_t last = 0;         // the number of the last of them
    std::vector<std::size_t> ends;  // of their pieces
  };
  std::vector<Read> read_;  // of each place, those that were given as settled
  std::string key_;
  std::vector<Series> series_;
  std::vector<RunStream::Piece> settled_, open_;
};

}  // namespace trainmon
