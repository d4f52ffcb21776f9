#include "stats/cuda/device.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <type_traits>
#include <utility>

#include "stats/cuda/arena.h"
#include "stats/cuda/current_context.h"
#include "stats/cuda/image.h"
#include "stats/cuda/launch_table.h"
#include "stats/cuda/measure_cuda.h"

namespace trainmon::cuda {
namespace {

constexpr std::size_t kRows = 16384;  // results of launches under way
constexpr std::size_t kBlobBytes = std::size_t{2} << 20;
constexpr std::size_t kPartials = 65536;  // states of 128 KiB each: 8 GiB of tensors
constexpr std::size_t kCounters = 8192;
constexpr int kTries = 3;  // launches in a row that may fail before there are no more

// Gives each tensor its row. The rows of tensors without elements, which leave `pieces`: they are
// answered here, the others by the device.
std::vector<std::uint32_t> number_and_take_empty(Pieces& pieces) {
  std::vector<std::uint32_t> empty;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    Entry& entry = pieces.entries[i];
    entry.row = static_cast<std::uint32_t>(i);
    if (entry.elements == 0) empty.push_back(entry.row);
  }
  if (empty.empty()) return empty;
  const auto is_empty = [](const Entry& entry) { return entry.elements == 0; };
  std::size_t kept = 0;
  for (std::size_t i = 0; i < pieces.checks.size(); ++i) {
    if (!is_empty(pieces.entries[i])) pieces.checks[kept++] = pieces.checks[i];
  }
  pieces.checks.resize(kept);
  std::erase_if(pieces.entries, is_empty);
  return empty;
}

// Where a launch has its results and its partial states, for both sides.
void point_into_arena(const Arena& arena, const Places& places, const Need& need, Flight& flight,
                      CheckedWork& work) {
  flight.results = arena.results + places.row;
  work.results = reinterpret_cast<Result*>(arena.results_device) + places.row;
  if (need.counters > 0) {
    work.partials = reinterpret_cast<RowState*>(arena.partials_device) + places.partial;
    point_at_counters(work, reinterpret_cast<unsigned*>(arena.counters_device) + places.counter);
  }
  if (!need.checks) return;
  flight.checks = arena.checks + places.row;
  work.check_results = reinterpret_cast<CheckSums*>(arena.checks_device) + places.row;
  work.check_partials = reinterpret_cast<CheckSums*>(arena.check_partials_device) + places.partial;
}

// Its state and check are those of no elements.
void answer_empty(const Arena& arena, std::size_t row, std::uint64_t serial) {
  Result& result = arena.results[row];
  result.state = {};
  if (arena.has_checks) arena.checks[row] = {};
  std::atomic_ref(result.stamp).store(serial, std::memory_order_release);
}

}  // namespace

CudaDevice* CudaDevice::of(int index, std::string& why) {
  struct Known {
    CudaDevice* device = nullptr;
    std::string why;
  };
  static std::mutex mutex;
  static std::map<int, Known>& known = *new std::map<int, Known>();
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = known.try_emplace(index);
  if (is_new) {
    auto* device = new CudaDevice();
    if (device->start(index, found->second.why)) {
      found->second.device = device;
    } else {
      delete device;
    }
  }
  why = found->second.why;
  return found->second.device;
}

bool CudaDevice::start(int index, std::string& why) {
  if (image().empty()) {
    why = "this build has no CUDA kernels (it was made without nvcc)";
    return false;
  }
  driver_ = Driver::get(why);
  if (driver_ == nullptr) return false;
  int device = 0;
  int multiprocessors = 0;
  int major = 0;
  int minor = 0;
  char name[128] = {};
  const auto failed = [&](Status status, const char* what) {
    if (status != 0) why = std::string(what) + ": " + driver_->name_of(status);
    return status != 0;
  };
  if (failed(driver_->device_get(&device, index), "no such CUDA device")) return false;
  driver_->device_name(name, sizeof name - 1, device);
  driver_->device_attribute(&multiprocessors, kMultiprocessors, device);
  driver_->device_attribute(&major, kCapabilityMajor, device);
  driver_->device_attribute(&minor, kCapabilityMinor, device);
  name_ = name;
  // The context that the framework uses, too.
  if (failed(driver_->primary_retain(&context_, device), "no context")) return false;
  const InContext in_context(*driver_, context_);
  if (failed(in_context.status(), "no context")) return false;
  const Relaxed relaxed(*driver_);
  Module module = nullptr;
  if (failed(driver_->module_load(&module, image().data()), "its kernels do not load")) {
    why += " (" + name_ + " is sm_" + std::to_string(major) + std::to_string(minor) +
           ", this build has " + std::string(cuda_architectures()) + ")";
    return false;
  }
  if (failed(driver_->module_function(&measure_, module, "trainmon_measure"), "no kernel") ||
      failed(driver_->module_function(&next_window_, module, "trainmon_next_window"),
             "no kernel")) {
    return false;
  }
  int blocks = 1;
  driver_->occupancy(&blocks, measure_, kThreads, 0);
  grid_ = static_cast<unsigned>(std::max(1, blocks * multiprocessors));
  if (failed(driver_->stream_create(&own_stream_, kNonBlocking), "no stream")) return false;
  if (!grow({kRows, kBlobBytes, kPartials, kCounters}, why)) return false;

  // What replays of captured graphs need: the open windows, and a ring for their results.
  void* host = nullptr;
  Pointer mapped = 0;
  Pointer words = 0;
  constexpr std::size_t kRingBytes = kReplays * sizeof(Result) + 2 * sizeof(std::uint64_t);
  if (failed(driver_->device_alloc(&words, 2 * sizeof(std::uint64_t) + sizeof window_now_),
             "no memory") ||
      failed(driver_->set_words(words, 0, 4 + window_now_.size(), own_stream_), "no memory") ||
      failed(driver_->host_alloc(&host, kRingBytes, kHostMapped | kHostPortable), "no memory") ||
      failed(driver_->host_address(&mapped, host, 0), "no memory")) {
    return false;
  }
  std::memset(host, 0, kRingBytes);
  if (failed(driver_->stream_wait(own_stream_), "no memory")) return false;
  windows_ = words + 2 * sizeof(std::uint64_t);
  auto* after = static_cast<std::byte*>(host) + kReplays * sizeof(Result);
  ring_words_ = reinterpret_cast<std::uint64_t*>(after);
  const Pointer mapped_words = mapped + kReplays * sizeof(Result);
  ring_.results = reinterpret_cast<Result*>(mapped);
  ring_.capacity = kReplays;
  ring_.head = reinterpret_cast<unsigned long long*>(words);
  ring_.dropped = reinterpret_cast<unsigned long long*>(words + sizeof(std::uint64_t));
  ring_.tail = reinterpret_cast<const volatile std::uint64_t*>(mapped_words);
  ring_.dropped_seen =
      reinterpret_cast<volatile std::uint64_t*>(mapped_words + sizeof(std::uint64_t));
  replay_results_ = static_cast<const Result*>(host);
  return true;
}

Status CudaDevice::complete(Arena& arena) {
  const Need capacity = arena.capacity();
  Status status = 0;
  const auto on_host = [&](auto*& address, std::size_t bytes, unsigned flags) {
    void* taken = nullptr;
    if (status == 0 && address == nullptr) status = driver_->host_alloc(&taken, bytes, flags);
    if (taken != nullptr) address = static_cast<std::remove_reference_t<decltype(address)>>(taken);
  };
  const auto on_device = [&](Pointer& address, std::size_t bytes) {
    if (status == 0 && address == 0) status = driver_->device_alloc(&address, bytes);
    if (status != 0) address = 0;
  };
  on_host(arena.results, capacity.rows * sizeof(Result), kHostMapped | kHostPortable);
  if (capacity.checks) {
    on_host(arena.checks, capacity.rows * sizeof(CheckSums), kHostMapped | kHostPortable);
    on_device(arena.check_partials_device, capacity.partials * sizeof(CheckSums));
    if (status == 0) status = driver_->host_address(&arena.checks_device, arena.checks, 0);
  }
  on_host(arena.blob, capacity.blob, kHostPortable);
  on_device(arena.blob_device, capacity.blob);
  on_device(arena.partials_device, capacity.partials * sizeof(RowState));
  on_device(arena.counters_device, capacity.counters * sizeof(unsigned));
  if (status == 0) status = driver_->host_address(&arena.results_device, arena.results, 0);
  if (status == 0) {
    status = driver_->set_words(arena.counters_device, 0, capacity.counters, own_stream_);
  }
  if (status == 0) status = driver_->stream_wait(own_stream_);
  if (status == 0)
    std::memset(static_cast<void*>(arena.results), 0, capacity.rows * sizeof(Result));
  return status;
}

bool CudaDevice::grow(const Need& need, std::string& why) {
  const Relaxed relaxed(*driver_);
  if (unfinished_ == nullptr || !unfinished_->fits(need)) {
    unfinished_ = std::make_shared<Arena>(need, is_lost_);
  }
  const Status status = complete(*unfinished_);
  if (status != 0) {
    why = failed("no memory for results", status);
    return false;
  }
  arena_ = std::move(unfinished_);
  is_stale_ = false;
  return true;
}

bool CudaDevice::make_room(const Need& need, std::string& why) {
  if (arena_->fits(need)) return !is_stale_ || grow(arena_->capacity(), why);
  const Need had = arena_->capacity();
  return grow({std::max(4 * need.rows, had.rows), std::max(4 * need.blob, had.blob),
               std::max(4 * need.partials, had.partials), std::max(4 * need.counters, had.counters),
               need.checks || had.checks},
              why);
}

std::string CudaDevice::failed(const char* what, Status status) {
  std::string why = std::string(what) + ": " + driver_->name_of(status);
  look_for_loss();
  if (is_lost_.load(std::memory_order_relaxed)) broken_ = why;
  return why;
}

bool CudaDevice::load_checked() {
  if (measure_checked_ != nullptr) return true;
  if (checked_tries_ == kTries) return false;
  const Relaxed relaxed(*driver_);
  Module module = nullptr;
  const bool is_loaded =
      driver_->module_load(&module, checked_image().data()) == 0 &&
      driver_->module_function(&measure_checked_, module, "trainmon_measure_checked") == 0;
  if (!is_loaded) {
    measure_checked_ = nullptr;
    ++checked_tries_;
  }
  return is_loaded;
}

void CudaDevice::reserve(std::size_t tensors, std::int64_t bytes, bool with_checks) {
  const std::size_t chunks = static_cast<std::size_t>(bytes / kChunkBytes) + tensors;
  const Tree tree = tree_of(static_cast<std::int64_t>(chunks));
  const auto partials = static_cast<std::size_t>(tree.partials) + 4 * tensors;
  const auto counters = static_cast<std::size_t>(tree.counters) + 4 * tensors + kOwnCounters;
  // Several launches may be under way: those of two steps, with all that is taken around a step.
  constexpr std::size_t kLaunches = 8;
  const std::lock_guard lock(mutex_);
  const Need had = arena_->capacity();
  const Need need{std::max(had.rows, kLaunches * tensors),
                  std::max(had.blob, kLaunches * BlobLayout(tensors, chunks, 0, with_checks).bytes),
                  std::max(had.partials, kLaunches * partials),
                  std::max(had.counters, kLaunches * counters), with_checks || had.checks};
  if (arena_->fits(need)) return;
  const InContext in_context(*driver_, context_);
  std::string why;
  if (in_context.status() != 0) return;
  if (with_checks) load_checked();
  grow(need, why);
}

std::optional<bool> CudaDevice::is_capturing(Stream stream) {
  int status = 0;
  if (driver_->is_capturing(stream, &status) != 0) return std::nullopt;
  return status != 0;
}

void CudaDevice::look_for_loss() {
  const InContext in_context(*driver_, context_);
  const Relaxed relaxed(*driver_);
  const Status status =
      in_context.status() != 0 ? in_context.status() : driver_->stream_query(own_stream_);
  const bool goes_on =
      status == 0 || status == kNotReady || status == kOutOfMemory || status >= kCapturing;
  if (!goes_on) is_lost_.store(true, std::memory_order_release);
}

Status CudaDevice::launch_kernel(CheckedWork& work, bool with_checks, Stream stream) {
  void* parameters[] = {&work};  // begins with what the kernel without checks has
  return driver_->launch(with_checks ? measure_checked_ : measure_,
                         std::min<unsigned>(grid_, work.chunks), 1, 1, kThreads, 1, 1, 0, stream,
                         parameters, nullptr);
}

void CudaDevice::time_launches(bool on) {
  const std::lock_guard lock(mutex_);
  timer_.turn(on);
}

std::optional<double> CudaDevice::launch_seconds() {
  const std::lock_guard lock(mutex_);
  if (is_lost_.load(std::memory_order_relaxed)) return std::nullopt;
  const InContext in_context(*driver_, context_);
  if (in_context.status() != 0) return std::nullopt;
  return timer_.take(*driver_);
}

Status CudaDevice::send_table(const Pieces& pieces, const BlobLayout& layout, std::size_t at,
                              CheckedWork& work, Stream stream) {
  const Pointer to = arena_->blob_device + at;
  write_blob(pieces, layout, arena_->blob + at);
  point_into_blob(work, layout, to);
  return driver_->copy_to_device(to, arena_->blob + at, layout.bytes, stream);
}

Launched CudaDevice::launch(Pieces& pieces, double eps, Stream stream,
                            const std::shared_ptr<ReplayInbox>& inbox) {
  const std::lock_guard lock(mutex_);
  Launched out;
  if (!broken_.empty()) {
    out.why = broken_;
    return out;
  }
  const InContext in_context(*driver_, context_);
  if (in_context.status() != 0) {
    out.why = failed("no context", in_context.status());
    return out;
  }
  CheckedWork work = {};
  work.eps = eps;
  work.window = reinterpret_cast<const std::int32_t*>(windows_);
  work.ring = ring_;
  const std::optional<bool> captured = is_capturing(stream);
  const bool with_checks = !pieces.checks.empty() && !captured.value_or(true) && load_checked();
  with_checks ? join_checks(pieces) : pieces.checks.clear();
  const std::size_t rows = pieces.size();
  const std::vector<std::uint32_t> empty = number_and_take_empty(pieces);
  if (captured.value_or(true)) {
    if (inbox == nullptr || !captured) {
      out.why = "a graph is being captured";
      return out;
    }
    return launch_captured(pieces, work, stream, inbox);
  }
  Table table = lay_out(pieces.entries);
  work.tensors = static_cast<std::uint32_t>(pieces.size());
  work.chunks = table.chunks;
  const bool is_inline = pieces.size() <= kInline && pieces.gaps.empty();
  const BlobLayout layout(pieces.size(), table.chunks, pieces.gaps.size(), with_checks);
  table.need.rows = rows;
  table.need.checks = with_checks;
  table.need.blob = is_inline ? 0 : layout.bytes;
  if (is_inline && !with_checks && stream_memory_.point(*driver_, stream, table.need, work)) {
    table.need.partials = table.need.counters = 0;
  }
  arena_->reclaim();
  if (!make_room(table.need, out.why)) return out;
  Arena& arena = *arena_;
  auto flight = std::make_shared<Flight>();
  Places places;
  if (!arena.take(table.need, *flight, places)) {
    out.why = "device_ring_full";
    return out;
  }
  flight->serial = work.serial = ++serial_;
  flight->rows = rows;
  point_into_arena(arena, places, table.need, *flight, work);
  for (const std::uint32_t row : empty) answer_empty(arena, places.row + row, work.serial);
  Status status = 0;
  if (is_inline) {
    std::ranges::copy(pieces.entries, work.inlined);
    std::ranges::copy(pieces.checks, work.inlined_checks);
  } else {
    status = send_table(pieces, layout, places.blob, work, stream);
  }
  if (status == 0 && !pieces.empty()) {
    timer_.before_launch(*driver_, stream);
    status = launch_kernel(work, with_checks, stream);
    if (status == 0) timer_.after_launch(*driver_, stream);
  }
  if (status != 0) {
    // Its memory is not used again, for the device may still write there.
    is_stale_ = true;
    stream_memory_.give_up(stream);
    out.why = failed("a kernel could not be launched", status);
    if (++failures_ == kTries) broken_ = out.why;
    return out;
  }
  failures_ = 0;
  arena.flights.push_back(flight);
  out.launch = std::make_shared<Launch>(arena_, std::move(flight));
  return out;
}

}  // namespace trainmon::cuda
