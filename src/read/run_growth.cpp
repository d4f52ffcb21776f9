// What stays is a beginning of each log: batches in the order of writing. It ends before the
// first one with a window of which it is not known yet what became of it.
#include "read/run_growth.h"

#include <algorithm>

#include "model/wrapping.h"

namespace trainmon {
namespace {

constexpr std::int64_t kManyWindows = 64;  // batches are short

std::string key_of(const RunStream& stream, const std::vector<RunStream::Place>& places) {
  const RunRows& facts = stream.facts();
  std::string key = stream.selected_before();
  for (const RunStream::Place& place : places) {
    key += place.directory.path.native() + '\0' + place.origin + '\0';
  }
  for (const int rank : facts.ranks) key += std::to_string(rank) + ' ';
  for (const int rank : facts.missing.ranks) key += std::to_string(rank) + ' ';
  for (const ReadGap& one : facts.gaps) {
    key += std::to_string(one.rank) + ' ' + std::to_string(one.restart) + ' ' +
           std::to_string(one.gap.rows) + ' ' + std::to_string(one.gap.first_seq) + ' ';
  }
  return key;
}

std::vector<std::size_t> ends_of(const std::vector<RunStream::Piece>& pieces) {
  std::vector<std::size_t> ends;
  for (const RunStream::Piece& one : pieces) ends.push_back(one.end);
  return ends;
}

}  // namespace

bool RunGrowth::look(const RunStream& stream) {
  std::vector<std::size_t> from;
  for (const Read& one : read_) from.push_back(one.batches);
  std::vector<RunStream::Place> places = stream.places(from);
  std::string key = key_of(stream, places);
  bool is_same = read_.size() == places.size() && key == key_ && series_ == stream.facts().series;
  for (std::size_t i = 0; is_same && i < read_.size(); ++i) {
    const std::size_t batches = read_[i].batches;
    const std::vector<std::size_t> ends = ends_of(stream.pieces_between(i, 0, batches));
    is_same = batches <= places[i].batches && read_[i].ends == ends &&
              (!places[i].is_over || batches == places[i].batches) &&
              (batches == 0 || stream.batch_number(i, batches - 1) == read_[i].last);
  }
  if (!is_same) {
    read_.assign(places.size(), {});
    key_ = std::move(key);
    series_ = stream.facts().series;
    places = stream.places({});
  }
  settled_.clear();
  open_.clear();
  for (std::size_t i = 0; i < places.size(); ++i) {
    const auto give = [&](std::size_t first, std::size_t end, auto& to) {
      const std::vector<RunStream::Piece> pieces = stream.pieces_between(i, first, end);
      to.insert(to.end(), pieces.begin(), pieces.end());
    };
    give(read_[i].batches, places[i].settled, settled_);
    give(places[i].settled, places[i].batches, open_);
    read_[i].batches = places[i].settled;
    read_[i].last = places[i].settled == 0 ? 0 : stream.batch_number(i, places[i].settled - 1);
    read_[i].ends = ends_of(stream.pieces_between(i, 0, places[i].settled));
  }
  return is_same;
}

std::vector<RunStream::Place> RunStream::places(const std::vector<std::size_t>& from) const {
  std::vector<Place> places;
  for (std::size_t i = 0; i < directories_.size(); ++i) {
    const Directory& directory = directories_[i];
    const LogContents& log = directory.log->contents();
    const auto is_known = [&](std::int64_t window) {
      return std::ranges::all_of(directory.wanted->optimizers, [&](std::int32_t optimizer) {
        return directory.timeline.at(optimizer, window).fate != Fate::unknown ||
               !log.windows.contains(optimizer, window);
      });
    };
    const auto stays = [&](const LogIndex::BatchFacts& batch) {
      const std::int64_t windows = wrapping_difference(batch.last_window, batch.first_window);
      if (batch.rows + batch.payloads == 0) return true;
      if (windows < 0 || windows >= kManyWindows) return false;
      for (std::int64_t window = batch.first_window; window <= batch.last_window; ++window) {
        if (!is_known(window)) return false;
      }
      return true;
    };
    const std::string origin = directory.facts.process.host + " " +
                               directory.facts.process.started + " " +
                               std::to_string(directory.facts.process.pid);
    const auto batches = static_cast<std::size_t>(log.batch_count);
    const bool is_over =
        i + 1 < directories_.size() && directories_[i + 1].place.rank == directory.place.rank;
    const std::size_t known = i < from.size() ? from[i] : 0;
    const std::size_t settled = is_over ? batches : directory.log->first_without(known, stays);
    places.push_back({directory.place, origin, is_over, batches, settled});
  }
  return places;
}

std::uint64_t RunStream::batch_number(std::size_t place, std::size_t batch) const {
  return directories_[place].log->batch_number(batch);
}

std::vector<RunStream::Piece> RunStream::pieces_between(std::size_t place, std::size_t first,
                                                        std::size_t end) const {
  std::vector<Piece> pieces;
  const RankDirectory& of = directories_[place].place;
  for (const LogIndex::Piece& piece : directories_[place].log->pieces_between(first, end)) {
    pieces.push_back({piece, of.rank, of.restart, place});
  }
  return pieces;
}

std::string RunStream::selected_before() const {
  std::string selected;
  for (const Directory& directory : directories_) {
    if (directory.place.restart == facts_.newest_restart) continue;
    const WindowSet& windows = directory.log->contents().windows;
    windows.for_each([&](std::int32_t optimizer, std::int64_t window) {
      Outcome outcome = directory.timeline.at(optimizer, window);
      outcome.optimizer = optimizer;
      selected += takes(directory, outcome) ? '1' : '0';
    });
    selected += ' ';
  }
  return selected;
}

}  // namespace trainmon
