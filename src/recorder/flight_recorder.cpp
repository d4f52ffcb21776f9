// A slot is claimed by one atomic addition and written word by word; its checksum goes with it.
#include "recorder/flight_recorder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/crc32c.h"
#include "base/failpoint.h"
#include "base/file_system.h"
#include "base/process.h"

namespace trainmon {
namespace {

using namespace flight;

std::int64_t now_ns() {
  return std::chrono::system_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

// Words that other processes read while they change.
template <typename T>
void store(T& word, T value) {
  std::atomic_ref<T>(word).store(value, std::memory_order_release);
}

template <typename T>
std::string_view bytes_of(const T& value, std::size_t size) {
  return {reinterpret_cast<const char*>(&value), size};
}

template <std::size_t size>
void copy_text(char (&to)[size], std::string_view text) {
  std::memcpy(to, text.data(), std::min(size, text.size()));
}

int take_room(const File& file, std::size_t bytes) {
  if (const Failure failure = failpoint("flight.allocate"); failure.error != 0) {
    return failure.error;
  }
  int error = 0;
  do {
    error = ::posix_fallocate(file.fd(), 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  return error;
}

File make_ring(const RunInfo& run, std::filesystem::path& path) {
  if (const auto network = network_file_system(run.directory)) {
    throw SinkError("network", run.directory.string() + " is on " + std::string(*network) +
                                   ": a recorder needs a local file system");
  }
  File made;
  int number = 0;
  make_next_file(run.directory, number, [&](int next) {
    char name[32];
    std::snprintf(name, sizeof name, "flight-%06d.ring", next);
    path = run.directory / name;
    create_file(path);
  });
  made = File(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!made.is_open()) throw file_error(errno, "cannot open", path);
  return made;
}

}  // namespace

FlightRecorder::FlightRecorder(const RunInfo& run, const SeriesTable& series, std::size_t bytes)
    : series_(series), file_(make_ring(run, path_)) {
  bytes = std::max(bytes, kLeastBytes);
  names_bytes_ = std::min(bytes / 8 / kSlotBytes * kSlotBytes, kMostNameBytes);
  slots_ = (bytes - kHeaderBytes - names_bytes_) / kSlotBytes;
  bytes_ = kHeaderBytes + names_bytes_ + slots_ * kSlotBytes;
  // A file with holes would kill the process when the disk is full.
  if (const int error = take_room(file_, bytes_); error != 0) {
    ::unlink(path_.c_str());
    throw file_error(error, "cannot take the room of", path_);
  }
  void* const map = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_.fd(), 0);
  if (map == MAP_FAILED) {
    const int error = errno;
    ::unlink(path_.c_str());
    throw file_error(error, "cannot map", path_);
  }
  map_ = static_cast<std::byte*>(map);
  header_ = reinterpret_cast<Header*>(map_);
  names_ = map_ + kHeaderBytes;
  ring_ = reinterpret_cast<std::uint64_t*>(names_ + names_bytes_);
  Header header{};
  copy_text(header.magic, kMagic);
  header.version = kVersion;
  header.slot_bytes = kSlotBytes;
  header.names_at = kHeaderBytes;
  header.names_bytes = names_bytes_;
  header.slots_at = kHeaderBytes + names_bytes_;
  header.slots = slots_;
  header.rank = run.rank;
  header.world_size = run.world_size;
  header.restart = run.restart;
  header.clock = run.clock;
  header.pid = ::getpid();
  header.started_ns = header.beat_ns = now_ns();
  copy_text(header.host, host_name());
  copy_text(header.run_id, run.run_id);
  header.checksum = crc32c(bytes_of(header, offsetof(Header, checksum)));
  std::memcpy(map_ + kDescriptionAt, kDescription.data(), kDescription.size());
  std::memcpy(map_, &header, sizeof header);
}

FlightRecorder::~FlightRecorder() {
  if (map_ != nullptr) ::munmap(map_, bytes_);
}

void FlightRecorder::put(Slot& slot) noexcept {
  slot.seq = std::atomic_ref(header_->claimed).fetch_add(1, std::memory_order_relaxed) + 1;
  slot.time_ns = now_ns();
  slot.checksum = crc32c(bytes_of(slot, offsetof(Slot, checksum)));
  constexpr std::size_t kWords = kSlotBytes / sizeof(std::uint64_t);
  std::uint64_t words[kWords];
  std::memcpy(words, &slot, sizeof words);
  std::uint64_t* const to = ring_ + (slot.seq - 1) % slots_ * kWords;
  const auto store_word = [&](std::size_t i, std::uint64_t word) {
    std::atomic_ref(to[i]).store(word, std::memory_order_release);
  };
  // A kill comes between two instructions, so for it the order of this thread is all that counts.
  store_word(0, slot.seq | kBusy);
  for (std::size_t i = 1; i < kWords; ++i) {
    if (i == kWords / 2) failpoint("flight.slot");
    store_word(i, words[i]);
  }
  store_word(0, slot.seq);
}

bool FlightRecorder::add_name(NameType type, std::uint32_t id, std::string_view text) noexcept {
  constexpr std::size_t kLongest = 0xFFFF;
  NameHead head{};
  const std::size_t size = (sizeof head + text.size() + 3) / 4 * 4;
  if (text.size() > kLongest || size > names_bytes_ - names_used_) {
    std::atomic_ref(header_->names_lost).fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  head.type = static_cast<std::uint16_t>(type);
  head.length = static_cast<std::uint16_t>(text.size());
  head.id = id;
  std::byte* const to = names_ + names_used_;  // zeros until now
  std::memcpy(to + sizeof head, text.data(), text.size());
  std::memcpy(to, &head, sizeof head);
  head.checksum = crc32c({reinterpret_cast<const char*>(to) + 4, size - 4});
  std::memcpy(to, &head.checksum, sizeof head.checksum);
  names_used_ += size;
  store(header_->names_used, names_used_);
  return true;
}

std::uint32_t FlightRecorder::numbered(NameType type, std::string_view text) noexcept {
  try {
    const std::lock_guard lock(names_mutex_);
    const auto [found, is_new] = numbers_.try_emplace({type, std::string(text)}, 0);
    const auto next = static_cast<std::uint32_t>(numbers_.size());
    if (is_new && add_name(type, next, text)) found->second = next;
    return found->second;
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

std::uint32_t FlightRecorder::word(std::string_view text) noexcept {
  return numbered(NameType::word, text);
}

std::uint32_t FlightRecorder::group(std::string_view name, std::string_view ranks) noexcept {
  try {
    std::string text(name);
    text.push_back('\0');
    return numbered(NameType::group, text.append(ranks));
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

void FlightRecorder::name_series_up_to(SeriesId last) noexcept {
  const std::lock_guard lock(names_mutex_);
  for (std::size_t id = named_.load(std::memory_order_relaxed); id <= last; ++id) {
    try {
      const Series& series = series_.at(static_cast<SeriesId>(id));
      std::string text = series.kind;
      for (std::string_view part : {std::string_view(series.name), std::string_view(series.element),
                                    dtype_name(series.dtype)}) {
        text.push_back('\0');
        text.append(part);
      }
      add_name(NameType::series, static_cast<std::uint32_t>(id), text);
    } catch (const std::bad_alloc&) {
      std::atomic_ref(header_->names_lost).fetch_add(1, std::memory_order_relaxed);
    }
    named_.store(id + 1, std::memory_order_release);
  }
}

void FlightRecorder::row(const Row& row, std::int64_t step) noexcept {
  if (row.key.series >= named_.load(std::memory_order_acquire)) name_series_up_to(row.key.series);
  const RowState& state = row.state;
  Slot slot{};
  slot.type = static_cast<std::uint16_t>(Type::row);
  slot.id = row.key.series;
  slot.window = row.key.window;
  slot.step = step;
  slot.accum = row.key.accum;
  slot.call = row.key.call;
  slot.number = row.key.seq;
  slot.count = state.count;
  slot.nans = state.nans;
  slot.infs = state.pos_infs + state.neg_infs;
  slot.values[0] = derive(Stat::norm, state);
  slot.values[1] = derive(Stat::min, state);
  slot.values[2] = derive(Stat::max, state);
  slot.values[3] = derive(Stat::mean, state);
  slot.flags = row.key.flags;
  slot.optimizer = series_.at(row.key.series).optimizer;
  put(slot);
}

void FlightRecorder::outcome(const Outcome& outcome) noexcept {
  Slot slot{};
  slot.type = static_cast<std::uint16_t>(Type::outcome);
  slot.detail = static_cast<std::uint16_t>(outcome.fate);
  slot.window = outcome.window;
  slot.step = outcome.step;
  slot.accum = outcome.attempt;
  slot.call = outcome.backwards;
  slot.values[0] = outcome.loss_scale;
  slot.optimizer = outcome.optimizer;
  put(slot);
}

void FlightRecorder::scalar(std::string_view name, std::int64_t window, double value) noexcept {
  Slot slot{};
  slot.type = static_cast<std::uint16_t>(Type::scalar);
  slot.id = word(name);
  slot.window = window;
  slot.values[0] = value;
  put(slot);
}

void FlightRecorder::alert(const Alert& alert) noexcept {
  if (alert.key.series >= named_.load(std::memory_order_acquire) &&
      alert.key.series < series_.size()) {
    name_series_up_to(alert.key.series);
  }
  Slot slot{};
  slot.type = static_cast<std::uint16_t>(Type::alert);
  slot.id = alert.key.series;
  slot.window = alert.key.window;
  slot.step = alert.step;
  slot.accum = static_cast<std::int32_t>(word(alert.stat));
  slot.number = alert.key.seq;
  slot.count = alert.count;
  slot.values[0] = alert.value;
  slot.values[1] = alert.expected;
  slot.flags = alert.key.flags;
  slot.group = word(alert.rule);
  put(slot);
}

void FlightRecorder::stage(FlightStage stage, std::int32_t optimizer, std::int64_t window,
                           std::int64_t step) noexcept {
  Slot slot{};
  slot.type = static_cast<std::uint16_t>(Type::stage);
  slot.detail = static_cast<std::uint16_t>(stage);
  slot.window = window;
  slot.step = step;
  slot.optimizer = optimizer;
  put(slot);
}

void FlightRecorder::collective(const CollectiveCall& call, std::int64_t step) noexcept {
  Slot slot{};
  slot.type = static_cast<std::uint16_t>(call.enters ? Type::enter : Type::leave);
  slot.detail = static_cast<std::uint16_t>((call.waits ? kWaits : 0) |
                                           (call.is_point_to_point ? kPointToPoint : 0));
  slot.id = call.operation;
  slot.step = step;
  slot.number = call.number;
  slot.count = call.bytes;
  slot.group = call.group;
  put(slot);
}

void FlightRecorder::close() noexcept {
  store(header_->closed, std::uint64_t{1});
}

bool FlightRecorder::found_cut() noexcept {
  if (is_cut_) return false;
  struct stat status {};
  if (file_.is_ours() && ::fstat(file_.fd(), &status) == 0 &&
      static_cast<std::uint64_t>(status.st_size) < bytes_) {
    is_cut_ = ::mmap(map_, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                     -1, 0) != MAP_FAILED;
    return is_cut_;
  }
  store(header_->beat_ns, now_ns());
  return false;
}

}  // namespace trainmon
