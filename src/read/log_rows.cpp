// The second pass over a log: its rows, from the places that the first pass found.
#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/file_in_pieces.h"
#include "read/log_group.h"
#include "read/log_index.h"

namespace trainmon {
namespace {

constexpr const char* kHasChanged = "the file has changed since its first bytes were read";

}  // namespace

// Decodes one frame after another; memory is used again.
class LogIndex::FrameReader {
 public:
  // Gives the batches of one frame that are chosen, of those that stand in `places`. Returns why
  // it cannot; empty when it could. Throws SinkError.
  std::string read(FileInPieces& file, std::span<const BatchPlace> places, const Choose& choose,
                   const WantedSeries& wanted,
                   const std::function<void(RecordBatch&, const BatchFacts&)>& give) {
    std::optional<Columns> columns;
    chosen_.clear();
    for (const BatchPlace& place : places) {
      const std::optional<Columns> of_batch = choose(place.facts);
      if (!of_batch) continue;
      chosen_.push_back(&place);
      columns = columns ? Columns(*columns |= *of_batch) : *of_batch;
    }
    if (!columns) return "";
    const BatchPlace& place = places.front();
    std::optional<LogFrame> read =
        frame_at(file.read(place.offset, log_format::kFrameHeaderBytes + place.stored), 0);
    if (!read || read->header.stored != place.stored) return kHasChanged;
    LogFrame& frame = *read;
    std::string why;
    FrameBounds bounds = place.is_believed ? FrameBounds() : FrameBounds(place.stored, nothing_);
    if (!unpack(frame, unpacked_, bounds, why)) return why;
    std::size_t given = 0;
    const auto give_chosen = [&](RecordBatch& batch) {
      if (given == chosen_.size() || batch.number != chosen_[given]->number) return;
      give(batch, chosen_[given++]->facts);
    };
    bool is_used = false;
    if (frame.header.type == static_cast<std::uint8_t>(log_format::FrameType::group)) {
      const auto take = [&](RecordBatch& batch, const GroupedBatch&) { give_chosen(batch); };
      is_used = decode_group(frame.payload, frame.header.raw, bounds, why, columns, wanted, take);
    } else if (decode_batch(frame.payload, batch_, bounds, why, *columns, wanted)) {
      is_used = true;
      give_chosen(batch_);
    }
    if (is_used && given == chosen_.size()) return "";
    return why.empty() ? kHasChanged : why;
  }

 private:
  Allowance nothing_{0};
  RecordBatch batch_;
  std::string unpacked_;
  std::vector<const BatchPlace*> chosen_;
};

std::vector<LogIndex::Piece> LogIndex::pieces(std::int64_t enough) const {
  std::vector<Piece> pieces;
  for (std::size_t segment = 0; segment < segments_.size(); ++segment) {
    const BatchPlaces& places = segments_[segment].places;
    std::int64_t rows = enough, offset = 0;  // of the place before
    places.for_each(0, places.size(), [&](std::size_t i, const BatchPlace& place) {
      const bool is_in_frame = i > 0 && place.offset == offset;
      if (rows >= enough && !is_in_frame) {
        pieces.push_back({segment, i, i, 0});
        rows = 0;
      }
      pieces.back().end = i + 1;
      if (!is_in_frame) pieces.back().bytes += place.stored;
      pieces.back().facts.add(place.facts);
      rows += place.facts.rows + place.facts.payloads;
      offset = place.offset;
      return true;
    });
  }
  return pieces;
}

std::vector<LogIndex::Piece> LogIndex::pieces_between(std::size_t first, std::size_t end) const {
  std::vector<Piece> between;
  std::size_t segment = 0, before = 0;  // batches of segments before it
  for (Piece piece : pieces()) {
    for (; segment < piece.segment; ++segment) before += segments_[segment].places.size();
    const std::size_t from = std::max(first, before + piece.first) - before;
    const std::size_t to = std::min(end, before + piece.end);
    if (to <= before + from) continue;
    piece.is_rest = from > piece.first;
    if (from > piece.first || to - before < piece.end) {
      piece.facts = BatchFacts();
      segments_[segment].places.for_each(from, to - before,
                                         [&](std::size_t, const BatchPlace& place) {
                                           piece.facts.add(place.facts);
                                           return true;
                                         });
    }
    piece.first = from;
    piece.end = to - before;
    between.push_back(piece);
  }
  return between;
}

std::uint64_t LogIndex::batch_number(std::size_t batch) const {
  for (const Segment& segment : segments_) {
    if (batch >= segment.places.size()) {
      batch -= segment.places.size();
      continue;
    }
    std::uint64_t number = 0;
    segment.places.for_each(batch, batch + 1, [&](std::size_t, const BatchPlace& place) {
      number = place.number;
      return true;
    });
    return number;
  }
  return 0;
}

std::size_t LogIndex::first_without(std::size_t from,
                                    const std::function<bool(const BatchFacts&)>& stays) const {
  std::size_t before = 0;  // batches of segments before it
  for (const Segment& segment : segments_) {
    const std::size_t count = segment.places.size();
    const std::size_t first = std::min(count, from - std::min(from, before));
    std::size_t found = count;
    segment.places.for_each(first, count, [&](std::size_t i, const BatchPlace& place) {
      if (stays(place.facts)) return true;
      found = i;
      return false;
    });
    before += found;
    if (found < count) break;
  }
  return before;
}

namespace {

// Whether records of a series are wanted: asked for each row, so answered from a table.
class SeriesUse {
 public:
  SeriesUse(const std::map<SeriesId, Series>& series, const std::function<bool(SeriesId)>& wanted)
      : series_(series), wanted_(wanted) {}
  bool is_wanted(SeriesId id) { return of(id) == Use::wanted; }
  bool is_defined(SeriesId id) { return of(id) != Use::undefined; }

 private:
  enum class Use : char { unasked, wanted, unwanted, undefined };
  Use ask(SeriesId id) const {
    if (!series_.contains(id)) return Use::undefined;
    return wanted_(id) ? Use::wanted : Use::unwanted;
  }
  Use of(SeriesId id) {
    if (id >= kFewSeries) return ask(id);
    if (id >= known_.size()) known_.resize(id + 1, Use::unasked);
    if (known_[id] == Use::unasked) known_[id] = ask(id);
    return known_[id];
  }
  const std::map<SeriesId, Series>& series_;
  const std::function<bool(SeriesId)>& wanted_;
  std::vector<Use> known_;
};

}  // namespace

std::vector<BatchPlace> LogIndex::places_of(const Piece& piece, FileIdentity file) const {
  const Segment& segment = segments_[piece.segment];
  std::vector<BatchPlace> places;
  places.reserve(piece.end - piece.first);
  segment.places.for_each(piece.first, piece.end, [&](std::size_t, const BatchPlace& place) {
    places.push_back(place);
    return true;
  });
  if (file == segment.file) return places;
  Segment now;
  now.number = segment.number;
  now.path = segment.path;
  now.sound_bytes = segment.sound_bytes;
  std::unordered_map<std::uint64_t, BatchPlace> by_number;
  for (BatchPlace& place : index_segment(now).places) by_number.emplace(place.number, place);
  if (now.file != file) return {};
  std::erase_if(places, [&](BatchPlace& place) {
    const auto found = by_number.find(place.number);
    if (found != by_number.end()) place = found->second;
    return found == by_number.end();
  });
  return places;
}

std::int64_t LogIndex::read(const Piece& piece, const std::function<bool(SeriesId)>& wanted,
                            const Choose& choose, const Take& take,
                            std::vector<Damage>& damage) const {
  const std::filesystem::path& path = segments_[piece.segment].path;
  std::int64_t rows = 0;
  SeriesUse use(contents_.series, wanted);
  const WantedSeries of_wanted = [&](SeriesId id) { return use.is_wanted(id); };
  const auto give = [&](RecordBatch& batch, const BatchFacts& facts) {
    rows += facts.rows + facts.payloads;
    std::erase_if(batch.payloads, [&](const Payload& p) { return !of_wanted(p.key.series); });
    std::erase_if(batch.alerts, [&](const Alert& a) { return !use.is_defined(a.key.series); });
    take(std::move(batch), facts);
  };
  std::optional<FileInPieces> file;
  std::vector<BatchPlace> places;
  FrameReader reader;
  try {
    if (const auto& held = segments_[piece.segment].held) {
      file.emplace(path, *held);
    } else {
      file.emplace(path);
    }
    places = places_of(piece, file->identity());
    if (places.size() != piece.end - piece.first && !is_expired(segments_[piece.segment])) {
      damage.push_back({path, 0, kHasChanged});
    }
    for (std::size_t i = 0, end = 0; i < places.size(); i = end) {
      const auto same_frame = [&](const BatchPlace& place) {
        return place.offset == places[i].offset;
      };
      const auto next = std::find_if_not(places.begin() + static_cast<std::ptrdiff_t>(i),
                                         places.end(), same_frame);
      end = static_cast<std::size_t>(next - places.begin());
      std::string why = reader.read(*file, {places.data() + i, end - i}, choose, of_wanted, give);
      if (!why.empty()) damage.push_back({path, places[i].offset, std::move(why)});
    }
  } catch (const SinkError& error) {
    // Deleted since the first look: the rows are as gone as those before them.
    if (!is_expired(segments_[piece.segment])) damage.push_back({path, 0, error.what()});
  }
  return rows;
}

}  // namespace trainmon
