// The second pass over a log: its rows, from the places that the first pass found.
#include <optional>
#include <utility>
#include <vector>

#include "base/file_in_pieces.h"
#include "read/log_index.h"

namespace trainmon {

std::vector<LogIndex::Piece> LogIndex::pieces() const {
  constexpr std::int64_t kEnoughRows = std::int64_t{1} << 16;
  std::vector<Piece> pieces;
  for (std::size_t segment = 0; segment < segments_.size(); ++segment) {
    const std::vector<BatchPlace>& batches = segments_[segment].batches;
    std::int64_t rows = kEnoughRows;
    for (std::size_t i = 0; i < batches.size(); ++i) {
      if (rows >= kEnoughRows) {
        pieces.push_back({segment, i, i, 0});
        rows = 0;
      }
      pieces.back().end = i + 1;
      pieces.back().bytes += batches[i].frame.header.stored;
      rows += batches[i].facts.rows + batches[i].facts.payloads;
    }
  }
  return pieces;
}

std::int64_t LogIndex::read(const Piece& piece, const std::function<bool(SeriesId)>& wanted,
                            const Choose& choose, const Take& take,
                            std::vector<Damage>& damage) const {
  const Segment& segment = segments_[piece.segment];
  std::optional<FileInPieces> file;
  // Asked for each row, so answered from a table.
  enum class Use : char { unasked, wanted, unwanted, undefined };
  std::vector<Use> known;
  const auto ask = [&](SeriesId id) {
    if (!contents_.series.contains(id)) return Use::undefined;
    return wanted(id) ? Use::wanted : Use::unwanted;
  };
  const auto use_of = [&](SeriesId id) {
    if (id >= kFewSeries) return ask(id);
    if (id >= known.size()) known.resize(id + 1, Use::unasked);
    if (known[id] == Use::unasked) known[id] = ask(id);
    return known[id];
  };
  std::int64_t rows = 0;
  RecordBatch batch;
  std::string unpacked;
  for (std::size_t i = piece.first; i < piece.end; ++i) {
    const BatchPlace& place = segment.batches[i];
    const std::optional<Columns> columns = choose(place.facts);
    if (!columns) continue;
    LogFrame frame = place.frame;
    std::string why = "the file has changed since its first bytes were read";
    bool is_used = false;
    try {
      if (!file) file.emplace(segment.path);
      frame.payload = file->read(frame.offset + std::int64_t{log_format::kFrameHeaderBytes},
                                 frame.header.stored);
    } catch (const SinkError& error) {
      damage.push_back({segment.path, 0, error.what()});
      return rows;
    }
    if (frame.payload.size() == frame.header.stored) {
      FrameBounds known_to_hold;
      if (unpack(frame, unpacked, known_to_hold, why)) {
        is_used = decode_batch(frame.payload, batch, known_to_hold, why, *columns);
      }
    }
    if (!is_used || batch.number != place.number) {
      damage.push_back({segment.path, frame.offset, why});
      continue;
    }
    const auto drop = [&](const auto& record) {
      const Use use = use_of(record.key.series);
      rows += use == Use::undefined ? 0 : 1;
      return use != Use::wanted;
    };
    std::erase_if(batch.rows, drop);
    std::erase_if(batch.payloads, drop);
    std::erase_if(batch.alerts,
                  [&](const Alert& a) { return !contents_.series.contains(a.key.series); });
    take(std::move(batch));
  }
  return rows;
}

}  // namespace trainmon
