// The log of one rank and restart in two passes. The first takes what is small (outcomes,
// scalars, alerts, which series and windows there are). The second takes the rows, segment by
// segment. Memory is that of one batch, not of the log.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/file.h"
#include "read/batch_places.h"
#include "read/log.h"
#include "read/log_decode.h"
#include "read/segment_index.h"
#include "trainmon/read.h"

namespace trainmon {

class LogIndex {
 public:
  // Reads everything but rows and payloads. Never throws but std::bad_alloc and std::system_error
  // (no thread).
  // What lies beyond the bounds of frames is damage; `allowance` is that of the run.
  LogIndex(std::filesystem::path directory, int rank, int restart, Allowance& allowance,
           unsigned threads = 1)
      : LogIndex(std::move(directory), rank, restart, allowance, threads, Kept()) {}
  // Of which segments the index is kept in a file beside them (index_file.h). It changes nothing of
  // what is read.
  struct Kept {
    std::int64_t from_bytes = -1;  // of so many or more; -1: of none
    bool is_over = false;          // nobody writes the last one any more
  };
  LogIndex(std::filesystem::path directory, int rank, int restart, Allowance& allowance,
           unsigned threads, Kept kept);

  // What the segments say of each other, from their beginnings alone: which are missing, and which
  // end too early.
  static std::vector<Damage> cut_segments(const std::filesystem::path& directory, int rank,
                                          int restart);

  // All but rows, payloads and outcomes stands in one batch, if there is any; `rows` and `windows`
  // count those of all series.
  const LogContents& contents() const { return contents_; }
  LogContents take_contents() { return std::move(contents_); }
  void share_series(SharedSeries& shared) { shared.share(contents_.series); }

  using BatchFacts = trainmon::BatchFacts;
  // Batches of one segment that follow one another. They are so many that reading them is worth a
  // call, and so few that their rows fit in memory.
  struct Piece {
    std::size_t segment = 0;
    std::size_t first = 0;  // of the segment's batches
    std::size_t end = 0;
    std::int64_t bytes = 0;  // in the file
    bool is_rest = false;    // a part of another one, without its beginning
    BatchFacts facts = {};   // of all its batches
  };
  // All of them, in the order of writing; a piece has so many rows or somewhat more.
  static constexpr std::int64_t kEnoughRows = std::int64_t{1} << 16;
  std::vector<Piece> pieces(std::int64_t rows = kEnoughRows) const;
  // The parts of them between two batches, counted from 0 over all segments.
  std::vector<Piece> pieces_between(std::size_t first, std::size_t end) const;
  // What the writer numbered a batch; 0 where there is none.
  std::uint64_t batch_number(std::size_t batch) const;

  // The first batch from `from` on that `stays` refuses, or how many there are.
  std::size_t first_without(std::size_t from,
                            const std::function<bool(const BatchFacts&)>& stays) const;
  // Which columns of a batch to decode; nullopt: leave it out.
  using Choose = std::function<std::optional<Columns>(const BatchFacts&)>;
  // The batches of a piece, in the order of the file. They lack columns that were not chosen, and
  // rows and payloads of series that are not wanted. Several may be chosen before the first of
  // them is given. What `take` leaves in a batch is used again. Any thread; several pieces at the
  // same time. Returns the rows there were.
  using Take = std::function<void(RecordBatch&&, const BatchFacts&)>;
  std::int64_t read(const Piece& piece, const std::function<bool(SeriesId)>& wanted,
                    const Choose& choose, const Take& take, std::vector<Damage>& damage) const;

 private:
  struct Segment {
    int number = 0;
    std::filesystem::path path;
    std::int64_t sound_bytes = -1;     // as the next segment says; -1: nobody says
    FileIdentity file;                 // that was read: a compacted one may have its name by now
    bool is_gone = false;              // the writer had deleted it before it could be opened
    std::shared_ptr<const File> held;  // open, where the writer is about to delete it, or null
    std::vector<BatchPlace> batches;   // while the log is opened
    std::vector<RecordBatch> records;  // likewise: what they hold besides rows
    BatchPlaces places;                // the same afterwards
  };
  class FrameReader;
  static std::vector<Segment> linked_segments(const std::filesystem::path& directory, int rank,
                                              int restart, std::vector<Damage>& damage);
  // Whether the writer has deleted it meanwhile, on purpose.
  bool is_expired(const Segment& segment) const;
  SegmentIndex index_segment(Segment& segment, bool holds = false) const;
  // The batches of a piece where they are now, if another file has the segment's name.
  std::vector<BatchPlace> places_of(const Piece& piece, FileIdentity file) const;
  // All but the batches.
  void take(const Segment& segment, SegmentIndex& found);
  void drop_repeated();
  void join_records();
  bool has_repeated() const;

  const std::filesystem::path directory_;
  const int rank_;
  const int restart_;
  Allowance& allowance_;
  const Kept kept_;
  LogContents contents_;
  std::vector<Segment> segments_;
};

}  // namespace trainmon
