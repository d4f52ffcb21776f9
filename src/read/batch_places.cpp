// Each number is written as the difference to that of the place before it in its block. What is
// written here is read here alone, so it needs no checks.
#include "read/batch_places.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>

#include "model/wrapping.h"
#include "sinks/log_format.h"

namespace trainmon {
namespace {

enum PackedBits : std::uint8_t { kBad = 1, kBelieved = 2 };

// The numbers of one place, joined to the others by one call: a log may have many thousands.
class PackedPlace {
 public:
  void add(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_[size_++] = static_cast<char>(value | 0x80);
    bytes_[size_++] = static_cast<char>(value);
  }
  void add_signed(std::int64_t value) { add(log_format::zigzag(value)); }
  std::string_view bytes() const { return {bytes_.data(), size_}; }

 private:
  static constexpr std::size_t kNumbers = 9, kMostBytes = 10;
  std::array<char, kNumbers * kMostBytes> bytes_;
  std::size_t size_ = 0;
};

}  // namespace

BatchPlaces::BatchPlaces(std::span<const BatchPlace> places) : size_(places.size()) {
  std::unordered_map<std::uint64_t, std::uint64_t> known;  // series -> place in series_
  BatchPlace last;
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (i % kBlock == 0) {
      begins_.push_back(static_cast<std::uint32_t>(bytes_.size()));
      last = BatchPlace();
    }
    const BatchPlace& place = places[i];
    const BatchFacts& facts = place.facts;
    const auto [series, is_new] = known.try_emplace(facts.series, series_.size());
    if (is_new) series_.push_back(facts.series);
    PackedPlace packed;
    packed.add_signed(wrapping_difference(place.offset, last.offset));
    packed.add(place.stored);
    packed.add_signed(static_cast<std::int64_t>(place.number - last.number));
    packed.add(static_cast<std::uint64_t>(facts.rows));
    packed.add(static_cast<std::uint64_t>(facts.payloads));
    packed.add_signed(wrapping_difference(facts.first_window, last.facts.first_window));
    packed.add_signed(wrapping_difference(facts.last_window, facts.first_window));
    packed.add(series->second);
    packed.add(std::uint64_t{facts.has_bad_rows} * kBad |
               std::uint64_t{place.is_believed} * kBelieved);
    bytes_ += packed.bytes();
    last = place;
  }
  bytes_.shrink_to_fit();
  begins_.shrink_to_fit();
}

void BatchPlaces::unpack(std::size_t block, std::vector<BatchPlace>& places) const {
  places.clear();
  log_format::ByteReader reader(std::string_view(bytes_).substr(begins_[block]));
  BatchPlace place;
  for (std::size_t left = std::min(kBlock, size_ - block * kBlock); left > 0; --left) {
    BatchFacts& facts = place.facts;
    place.offset = wrapping_sum(place.offset, reader.signed_varint());
    place.stored = static_cast<std::uint32_t>(reader.varint());
    place.number += static_cast<std::uint64_t>(reader.signed_varint());
    facts.rows = static_cast<std::int64_t>(reader.varint());
    facts.payloads = static_cast<std::int64_t>(reader.varint());
    facts.first_window = wrapping_sum(facts.first_window, reader.signed_varint());
    facts.last_window = wrapping_sum(facts.first_window, reader.signed_varint());
    facts.series = series_[reader.varint()];
    const auto bits = reader.fixed<std::uint8_t>();
    facts.has_bad_rows = (bits & kBad) != 0;
    place.is_believed = (bits & kBelieved) != 0;
    places.push_back(place);
  }
}

}  // namespace trainmon
