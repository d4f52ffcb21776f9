// A flight recorder's file: as it is, and once more with the checksums put right, so that what they
// protect is read too.
#include <algorithm>
#include <cstring>

#include "answers/blackbox.h"
#include "base/crc32c.h"
#include "fuzz.h"
#include "recorder/flight_reader.h"
#include "trainmon/error.h"

namespace trainmon::fuzz {
namespace {

using flight::Header;
using flight::NameHead;
using flight::Slot;

template <typename T>
void put(std::string& bytes, std::size_t at, T value) {
  if (at + sizeof value <= bytes.size()) std::memcpy(bytes.data() + at, &value, sizeof value);
}

// A header that is believed, its parts within the file; names and slots with their checksums.
std::string with_checksums(std::string bytes) {
  if (bytes.size() < sizeof(Header)) return bytes;
  Header header{};
  std::memcpy(&header, bytes.data(), sizeof header);
  std::memcpy(header.magic, flight::kMagic.data(), sizeof header.magic);
  header.version = flight::kVersion;
  header.slot_bytes = sizeof(Slot);
  header.names_at = sizeof header;
  header.names_bytes = header.names_bytes % bytes.size();
  header.slots_at = header.names_at + header.names_bytes;
  header.slots = header.slots % 64 + 1;
  std::memcpy(bytes.data(), &header, sizeof header);
  const std::string_view view(bytes);
  put(bytes, offsetof(Header, checksum), crc32c(view.substr(0, offsetof(Header, checksum))));
  for (std::size_t at = header.names_at; at + sizeof(NameHead) <= header.slots_at;) {
    NameHead head{};
    if (at + sizeof head > bytes.size()) break;
    std::memcpy(&head, bytes.data() + at, sizeof head);
    const std::size_t size = (sizeof head + head.length + 3) / 4 * 4;
    if (at + size > bytes.size()) break;
    put(bytes, at, crc32c(view.substr(at + 4, size - 4)));
    at += size;
  }
  for (std::size_t at = header.slots_at; at + sizeof(Slot) <= bytes.size(); at += sizeof(Slot)) {
    const std::uint64_t index = (at - header.slots_at) / sizeof(Slot);
    if (index < header.slots) put(bytes, at, index + 1);
    put(bytes, at + offsetof(Slot, checksum), crc32c(view.substr(at, offsetof(Slot, checksum))));
  }
  return bytes;
}

void read(const std::string& bytes) {
  const std::filesystem::path directory = scratch() / "run" / "rank_00000" / "restart_0000";
  std::filesystem::create_directories(directory);
  const std::filesystem::path path = directory / "flight-000000.ring";
  fuzz::put(path, bytes);
  try {
    const FlightRecord record = read_flight(path);
    check(record.events.size() <= bytes.size() / sizeof(Slot), "events lie in the file");
    check(std::ranges::is_sorted(record.events, {}, &Slot::seq), "in the order of their numbers");
    check(record.unfinished + record.damaged <= bytes.size() / sizeof(Slot), "slots are there");
  } catch (const SinkError&) {
  }
  const BlackBox box = read_black_box(scratch() / "run");
  check(box.ranks.size() + box.damage.size() > 0, "a file is told, or what is wrong with it");
}

}  // namespace
}  // namespace trainmon::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trainmon::fuzz;
  const std::string bytes(text_of(data, size));
  read(bytes);
  read(with_checksums(bytes));
  return 0;
}
