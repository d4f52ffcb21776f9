// Nothing is mapped: a file that somebody shortens meanwhile must not end the reader.
#include "recorder/flight_reader.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <system_error>

#include "base/crc32c.h"
#include "base/file.h"

namespace trainmon {
namespace {

using namespace flight;

constexpr std::size_t kSlotsAtOnce = 4096;
constexpr std::uint64_t kNotWhole = ~std::uint64_t{0};

std::string text_of(const char* text, std::size_t size) {
  return {text, ::strnlen(text, size)};
}

std::uint64_t size_of(const File& file, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(file.fd(), &status) != 0) throw file_error(errno, "cannot stat", path);
  return static_cast<std::uint64_t>(status.st_size);
}

Header read_header(const File& file, const std::filesystem::path& path) {
  Header header{};
  const std::size_t size = read_at(file, 0, reinterpret_cast<char*>(&header), sizeof header, path);
  if (size < sizeof header || std::string_view(header.magic, sizeof header.magic) != kMagic) {
    throw SinkError("io_error", path.string() + " is no file of a flight recorder");
  }
  if (header.version != kVersion) {
    throw SinkError("io_error", path.string() + " has version " + std::to_string(header.version) +
                                    " of the format; this trainmon reads version " +
                                    std::to_string(kVersion));
  }
  const std::string_view checked(reinterpret_cast<const char*>(&header),
                                 offsetof(Header, checksum));
  const bool is_sound = crc32c(checked) == header.checksum && header.slot_bytes == kSlotBytes &&
                        header.slots > 0 && header.names_at <= header.slots_at &&
                        header.names_bytes <= header.slots_at - header.names_at;
  if (!is_sound) throw SinkError("io_error", path.string() + ": its header is damaged");
  return header;
}

void read_names(const File& file, const Header& header, FlightRecord& record) {
  std::string bytes(std::min({header.names_used, header.names_bytes, kMostNameBytes}), '\0');
  bytes.resize(read_at(file, static_cast<std::int64_t>(header.names_at), bytes.data(), bytes.size(),
                       record.path));
  for (std::size_t at = 0; at < bytes.size();) {
    NameHead head{};
    std::memcpy(&head, bytes.data() + at, std::min(sizeof head, bytes.size() - at));
    const std::size_t size = (sizeof head + head.length + 3) / 4 * 4;
    if (size > bytes.size() - at ||
        crc32c(std::string_view(bytes).substr(at + 4, size - 4)) != head.checksum) {
      record.damage.push_back("names are damaged from byte " +
                              std::to_string(header.names_at + at) + " on");
      return;
    }
    std::string text = bytes.substr(at + sizeof head, head.length);
    const auto type = static_cast<NameType>(head.type);
    auto& names = type == NameType::series  ? record.series
                  : type == NameType::group ? record.groups
                                            : record.words;
    names.insert_or_assign(head.id, std::move(text));
    at += size;
  }
}

std::uint64_t seq_of(const Slot& slot, std::uint64_t index, std::uint64_t slots) {
  const std::string_view bytes(reinterpret_cast<const char*>(&slot), sizeof slot);
  if (bytes.find_first_not_of('\0') == std::string_view::npos) return 0;
  if ((slot.seq & kBusy) != 0 && ((slot.seq & ~kBusy) - 1) % slots == index) return slot.seq;
  const bool is_whole = slot.seq > 0 && (slot.seq - 1) % slots == index &&
                        crc32c(bytes.substr(0, offsetof(Slot, checksum))) == slot.checksum;
  return is_whole ? slot.seq : kNotWhole;
}

// The last event that was begun in this slot; 0 for none.
std::uint64_t last_begun(std::uint64_t claimed, std::uint64_t index, std::uint64_t slots) {
  if (claimed <= index) return 0;
  return claimed - (claimed - 1 - index) % slots;
}

// seqs: of each slot that is there. It is 0 for a slot that was never written, with kBusy for one
// that is being written, kNotWhole for a damaged one.
void judge_slots(FlightRecord& record, const std::vector<std::uint64_t>& seqs) {
  // A live process goes on while it is read, and a header may lie.
  if (!record.events.empty()) {
    record.claimed = std::max(record.claimed, record.events.back().seq);
  }
  for (std::uint64_t index = 0; index < seqs.size(); ++index) {
    const std::uint64_t begun = last_begun(record.claimed, index, record.slots);
    if (begun == 0 || seqs[index] == begun) continue;
    // Begun, but the slot is as it was before, or half done: its thread had not got further.
    ++(seqs[index] == kNotWhole ? record.damaged : record.unfinished);
  }
  record.overwritten = record.claimed > record.slots ? record.claimed - record.slots : 0;
}

}  // namespace

const std::string& FlightRecord::word(std::uint32_t id) const {
  static const std::string none = "(unnamed)";
  const auto found = words.find(id);
  return found == words.end() ? none : found->second;
}

FlightRecord read_flight(const std::filesystem::path& path) {
  const File file = open_file(path);
  const Header header = read_header(file, path);
  FlightRecord record;
  record.path = path;
  record.rank = header.rank;
  record.world_size = header.world_size;
  record.restart = header.restart;
  record.clock = header.clock;
  record.pid = header.pid;
  record.host = text_of(header.host, sizeof header.host);
  record.run_id = text_of(header.run_id, sizeof header.run_id);
  record.started_ns = header.started_ns;
  record.beat_ns = header.beat_ns;
  record.closed = header.closed == 1;
  record.slots = header.slots;
  record.claimed = header.claimed & ~kBusy;
  record.names_lost = header.names_lost;
  const std::uint64_t size = size_of(file, path);
  const std::uint64_t there =
      size > header.slots_at ? std::min(header.slots, (size - header.slots_at) / kSlotBytes) : 0;
  if (there < header.slots) {
    record.damage.push_back("cut: " + std::to_string(header.slots - there) + " of " +
                            std::to_string(header.slots) + " slots are not there");
  }
  read_names(file, header, record);
  std::vector<std::uint64_t> seqs;
  std::vector<Slot> slots(kSlotsAtOnce);
  for (std::uint64_t first = 0; first < there; first += kSlotsAtOnce) {
    const std::size_t wanted = std::min<std::uint64_t>(kSlotsAtOnce, there - first) * kSlotBytes;
    const auto offset = static_cast<std::int64_t>(header.slots_at + first * kSlotBytes);
    const std::size_t got =
        read_at(file, offset, reinterpret_cast<char*>(slots.data()), wanted, path);
    for (std::size_t i = 0; i < got / kSlotBytes; ++i) {
      std::uint64_t seq = seq_of(slots[i], first + i, header.slots);
      if (seq == kNotWhole) {  // a live process may just have been there
        const auto at = offset + static_cast<std::int64_t>(i * kSlotBytes);
        read_at(file, at, reinterpret_cast<char*>(&slots[i]), kSlotBytes, path);
        seq = seq_of(slots[i], first + i, header.slots);
      }
      seqs.push_back(seq);
      if (seq != 0 && (seq & kBusy) == 0) record.events.push_back(slots[i]);
    }
  }
  std::ranges::sort(record.events, {}, &Slot::seq);
  judge_slots(record, seqs);
  return record;
}

std::vector<std::filesystem::path> flight_files(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> found;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with("flight-") && name.ends_with(".ring")) found.push_back(entry->path());
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace trainmon
