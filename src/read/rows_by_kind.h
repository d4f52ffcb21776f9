// The rows of one rank, read once and set apart by kind. A log is in the order of steps; somebody
// who wants tensors over all steps wants one kind in memory, not the rank.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "read/run_stream.h"
#include "trainmon/stat.h"

namespace trainmon {

// The text, bytes that are no UTF-8 as \xNN: what files hold that take valid text alone.
std::string valid_text(std::string_view text);

// Which row it is.
struct PlacedRow : RowPlace {
  std::uint32_t series = 0;  // index into RunRows::series
};

// What rows of one window share.
struct WindowPlace {
  std::int32_t restart = 0;
  std::int32_t attempt = 0;
  Fate fate = Fate::unknown;
  std::int64_t window = 0;
  std::int64_t step = 0;
  double loss_scale = 1.0;
};

// The rows of one kind and rank, by name, chunk, element (as valid text), restart, step, attempt
// and seq. In memory, 40 bytes a row and 8 for each statistic.
class KindRows {
 public:
  std::size_t size() const { return order_.size(); }
  const std::vector<Stat>& stats() const { return stats_; }
  // The rows from `begin` to `end`, and their statistics, row after row.
  void read(std::size_t begin, std::size_t end, std::vector<PlacedRow>& rows,
            std::vector<double>& values) const;

 private:
  friend class RowsByKind;
  KindRows(std::string bytes, int rank, const std::vector<Stat>& stats,
           const std::vector<WindowPlace>& windows, const std::vector<std::uint32_t>& ranking);
  const char* row(std::size_t place) const;

  std::string bytes_;
  int rank_;
  std::vector<Stat> stats_;
  std::vector<WindowPlace> windows_;
  std::vector<std::uint32_t> order_;  // places in bytes_
};

class RowsByKind {
 public:
  // The rows of a rank lie in a file that is made in `folder` and has no name afterwards. So many
  // threads as threads_with_pieces() says decode them.
  // Throws as read_run().
  RowsByKind(const std::filesystem::path& run, const ReadOptions& options, std::vector<Stat> stats,
             std::filesystem::path folder);

  // All that the run holds beside rows; damage includes that of the ranks taken so far.
  const RunRows& facts() const { return facts_; }
  // Of series selected, in the ranks taken so far.
  std::int64_t payload_count() const { return payloads_; }
  // Reads the selected rows of a rank, once. Throws SinkError where the file cannot be written.
  void take_rank(int rank);
  // Kinds that the rank taken last has rows of, ascending.
  std::vector<std::string> kinds() const;
  KindRows rows_of(const std::string& kind) const;

 private:
  // Rows of one kind: in the file, and those that are not written yet.
  struct Part {
    std::vector<std::pair<std::int64_t, std::size_t>> blocks;  // offset, bytes
    std::string waiting;
  };
  // The rows of a piece, set apart by kind. Any thread makes one.
  struct PieceRows {
    std::vector<std::string> rows;                          // by kind
    std::vector<WindowPlace> windows;                       // that they refer to
    std::map<std::int32_t, std::uint32_t> newest_window{};  // of an optimizer
    std::int64_t payloads = 0;
    std::vector<Damage> damage;
  };
  PieceRows read(const RunStream::Piece& piece) const;
  void add(const ReadRow& row, PieceRows& piece) const;
  std::uint32_t window_of(const ReadRow& row, PieceRows& piece) const;
  void take(PieceRows&& piece);
  void write(Part& part);

  const unsigned threads_;
  const std::vector<Stat> stats_;
  const std::filesystem::path folder_;
  RunStream stream_;
  RunRows facts_;
  std::vector<std::uint32_t> ranking_;  // of series, by name, chunk, element
  std::map<std::string, std::size_t> kinds_;
  std::vector<std::size_t> kind_of_;  // of series
  std::vector<Part> parts_;           // by kind
  std::vector<WindowPlace> windows_;
  int rank_ = -1;
  File to_, from_;  // one file
  std::filesystem::path path_;
  std::int64_t end_ = 0;
  std::int64_t payloads_ = 0;
  std::int64_t trimmable_ = 0;  // bytes of rows since unused memory was given back
};

}  // namespace trainmon
