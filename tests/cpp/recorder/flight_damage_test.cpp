// Forged, cut and random files: an event that is told is, byte for byte, one that was written.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>

#include "base/crc32c.h"
#include "base/file.h"
#include "file_content.h"
#include "flight_events.h"
#include "scratch.h"

namespace trainmon {
namespace {

using flight::Slot;

struct Ring {
  std::string bytes;
  std::map<std::uint64_t, std::string> events;  // by seq
};

Ring written(const std::filesystem::path& directory) {
  const EightSeries series;
  FlightRecorder recorder(run_in(directory), series, flight::kLeastBytes);
  for (std::int64_t i = 0; i < 1000; ++i) {
    recorder.row(row_of(static_cast<SeriesId>(i % 8), i), i + 1);
  }
  Ring ring;
  ring.bytes = content(recorder.path());
  for (const Slot& event : read_flight(recorder.path()).events) {
    ring.events[event.seq] = std::string(reinterpret_cast<const char*>(&event), sizeof event);
  }
  EXPECT_EQ(ring.events.size(), recorder.slots());
  return ring;
}

// Reads it as a file; false when it is refused as a whole.
bool only_true_events(const std::filesystem::path& path, const std::string& bytes,
                      const Ring& ring) {
  write_atomically(path, bytes);
  FlightRecord record;
  try {
    record = read_flight(path);
  } catch (const SinkError&) {
    return false;
  }
  for (const Slot& event : record.events) {
    const auto found = ring.events.find(event.seq);
    EXPECT_TRUE(found != ring.events.end()) << "event " << event.seq << " was never written";
    if (found == ring.events.end()) break;
    EXPECT_EQ(std::memcmp(found->second.data(), &event, sizeof event), 0) << event.seq;
  }
  const bool is_less = record.events.size() < ring.events.size();
  const bool is_said = record.damaged + record.unfinished > 0 || !record.damage.empty();
  EXPECT_TRUE(!is_less || is_said) << "events are missing and nothing is said";
  return true;
}

TEST(FlightDamage, FlippedBytes) {
  const Scratch scratch;
  const Ring ring = written(scratch.path());
  std::mt19937 random(7);
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = ring.bytes;
    for (unsigned flips = 1 + random() % 4; flips > 0; --flips) {
      const bool at_head = random() % 4 == 0;
      bytes[random() % (at_head ? 300 : bytes.size())] ^= static_cast<char>(1u << random() % 8);
    }
    refused += !only_true_events(scratch.path() / "flipped", bytes, ring);
  }
  EXPECT_GT(refused, 0);     // where the header was hit
  EXPECT_LT(refused, 1000);  // most were read
}

TEST(FlightDamage, CutAnywhere) {
  const Scratch scratch;
  const Ring ring = written(scratch.path());
  for (std::size_t size = 0; size < ring.bytes.size(); size += 97) {
    const bool is_read = only_true_events(scratch.path() / "cut", ring.bytes.substr(0, size), ring);
    EXPECT_EQ(is_read, size >= sizeof(flight::Header)) << size;
  }
}

TEST(FlightDamage, ForgedNumbersOfASoundHeader) {
  const Scratch scratch;
  const Ring ring = written(scratch.path());
  const std::uint64_t numbers[] = {
      0, 1, 127, 1u << 20, std::uint64_t{1} << 40, std::uint64_t{1} << 62, ~std::uint64_t{0}};
  for (const std::size_t at : {16u, 24u, 32u, 40u, 256u, 264u}) {
    for (const std::uint64_t number : numbers) {
      std::string bytes = ring.bytes;
      std::memcpy(bytes.data() + at, &number, sizeof number);
      const std::uint32_t checksum = crc32c(std::string_view(bytes).substr(0, 252));
      std::memcpy(bytes.data() + 252, &checksum, sizeof checksum);
      only_true_events(scratch.path() / "forged", bytes, ring);
    }
  }
}

TEST(FlightDamage, OldSlotsElsewhereAreNotTold) {
  const Scratch scratch;
  const Ring ring = written(scratch.path());
  std::string bytes = ring.bytes;
  // The oldest event is replaced by a whole slot from beside it.
  const std::size_t first = bytes.size() - ring.events.size() * sizeof(Slot);
  const std::size_t oldest = first + 1000 % ring.events.size() * sizeof(Slot);
  std::memcpy(bytes.data() + oldest, bytes.data() + oldest + sizeof(Slot), sizeof(Slot));
  ASSERT_TRUE(only_true_events(scratch.path() / "moved", bytes, ring));
  EXPECT_EQ(read_flight(scratch.path() / "moved").damaged, 1u);
}

TEST(FlightDamage, RandomBytesAreNoRing) {
  const Scratch scratch;
  std::mt19937 random(11);
  for (int i = 0; i < 200; ++i) {
    std::string bytes(random() % 9000, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    EXPECT_FALSE(only_true_events(scratch.path() / "random", bytes, {}));
  }
}

}  // namespace
}  // namespace trainmon
