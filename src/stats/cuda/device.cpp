#include "stats/cuda/device.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "stats/cuda/arena.h"
#include "stats/cuda/current_context.h"
#include "stats/cuda/image.h"
#include "stats/cuda/launch_table.h"

namespace trainmon::cuda {
namespace {

constexpr std::size_t kRows = 16384;  // results of launches under way
constexpr std::size_t kBlobBytes = std::size_t{2} << 20;
constexpr std::size_t kPartials = 65536;  // states of 128 KiB each: 8 GiB of tensors
constexpr std::size_t kCounters = 8192;
constexpr std::uint64_t kReplays = 16384;
constexpr std::size_t kLastingBytes = std::size_t{1} << 20;

}  // namespace

void ReplayInbox::put(const Replay& replay) {
  const std::lock_guard lock(mutex_);
  replays_.push_back(replay);
}
std::vector<Replay> ReplayInbox::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(replays_, {});
}

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
  const Relaxed relaxed(*driver_);
  Module module = nullptr;
  if (failed(driver_->module_load(&module, image().data()), "its kernels do not load")) {
    why += " (" + name_ + " is sm_" + std::to_string(major) + std::to_string(minor) +
           ", this build has " + std::string(architectures()) + ")";
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
  arena_ = make_arena({kRows, kBlobBytes, kPartials, kCounters}, why);
  if (arena_ == nullptr) return false;

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
  driver_->stream_wait(own_stream_);
  windows_ = words + 2 * sizeof(std::uint64_t);
  auto* after = static_cast<std::byte*>(host) + kReplays * sizeof(Result);
  ring_words_ = reinterpret_cast<volatile std::uint64_t*>(after);
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

std::shared_ptr<Arena> CudaDevice::make_arena(const Need& capacity, std::string& why) {
  auto arena = std::make_shared<Arena>(capacity);
  void* results = nullptr;
  void* staging = nullptr;
  const Status steps[] = {
      driver_->host_alloc(&results, capacity.rows * sizeof(Result), kHostMapped | kHostPortable),
      driver_->host_alloc(&staging, capacity.blob, kHostPortable),
      driver_->device_alloc(&arena->blob_device, capacity.blob),
      driver_->device_alloc(&arena->partials_device, capacity.partials * sizeof(RowState)),
      driver_->device_alloc(&arena->counters_device, capacity.counters * sizeof(unsigned)),
  };
  for (const Status status : steps) {
    if (status == 0) continue;
    why = "no memory for results: " + driver_->name_of(status);
    return nullptr;
  }
  if (driver_->host_address(&arena->results_device, results, 0) != 0 ||
      driver_->set_words(arena->counters_device, 0, capacity.counters, own_stream_) != 0 ||
      driver_->stream_wait(own_stream_) != 0) {
    why = "no memory for results";
    return nullptr;
  }
  std::memset(results, 0, capacity.rows * sizeof(Result));
  arena->results = static_cast<Result*>(results);
  arena->blob = static_cast<std::byte*>(staging);
  return arena;
}

bool CudaDevice::grow(const Need& need, std::string& why) {
  const Relaxed relaxed(*driver_);
  const Need had = arena_->capacity();
  auto larger =
      make_arena({std::max(need.rows, had.rows), std::max(need.blob, had.blob),
                  std::max(need.partials, had.partials), std::max(need.counters, had.counters)},
                 why);
  if (larger == nullptr) return false;
  arena_ = std::move(larger);
  return true;
}

void CudaDevice::reserve(std::size_t tensors, std::int64_t bytes) {
  const std::size_t chunks = static_cast<std::size_t>(bytes / kChunkBytes) + tensors;
  const Tree tree = tree_of(static_cast<std::int64_t>(chunks));
  const auto partials = static_cast<std::size_t>(tree.partials) + 4 * tensors;
  const auto counters = static_cast<std::size_t>(tree.counters) + 4 * tensors + kOwnCounters;
  // Several launches may be under way: those of two steps, with all that is taken around a step.
  constexpr std::size_t kLaunches = 8;
  const Need need{kLaunches * tensors, kLaunches * BlobLayout(tensors, chunks, 0).bytes,
                  kLaunches * partials, kLaunches * counters};
  const std::lock_guard lock(mutex_);
  if (arena_->fits(need)) return;
  const InContext in_context(*driver_, context_);
  std::string why;
  grow(need, why);
}

bool CudaDevice::is_capturing(Stream stream) {
  int status = 0;
  return driver_->is_capturing(stream, &status) == 0 && status != 0;
}

Status CudaDevice::launch_kernel(Work& work, Stream stream) {
  void* parameters[] = {&work};
  return driver_->launch(measure_, std::min<unsigned>(grid_, work.chunks), 1, 1, kThreads, 1, 1, 0,
                         stream, parameters, nullptr);
}

Launched CudaDevice::launch(std::vector<Piece>& pieces, double eps, Stream stream,
                            const std::shared_ptr<ReplayInbox>& inbox) {
  const std::lock_guard lock(mutex_);
  Launched out;
  if (!broken_.empty()) {
    out.why = broken_;
    return out;
  }
  const InContext in_context(*driver_, context_);
  // Tensors without elements are answered here, the others by the device.
  const std::size_t rows = pieces.size();
  for (std::size_t i = 0; i < rows; ++i) pieces[i].entry.row = static_cast<std::uint32_t>(i);
  const auto full = std::stable_partition(pieces.begin(), pieces.end(),
                                          [](const Piece& p) { return p.entry.elements > 0; });
  const std::vector<Piece> empty(full, pieces.end());
  pieces.erase(full, pieces.end());
  Work work = {};
  work.eps = eps;
  work.window = reinterpret_cast<const std::int32_t*>(windows_);
  work.ring = ring_;
  if (is_capturing(stream)) {
    if (inbox == nullptr) {
      out.why = "a graph is being captured";
      return out;
    }
    return launch_captured(pieces, work, stream, inbox);
  }
  Table table = lay_out(pieces);
  work.tensors = static_cast<std::uint32_t>(pieces.size());
  work.chunks = table.chunks;
  const bool is_inline = pieces.size() <= kInline && table.strided == 0;
  const BlobLayout layout(pieces.size(), table.chunks, table.strided);
  table.need.rows = rows;
  table.need.blob = is_inline ? 0 : layout.bytes;
  arena_->reclaim();
  if (!arena_->fits(table.need)) {
    const Need& need = table.need;
    if (!grow({4 * need.rows, 4 * need.blob, 4 * need.partials, 4 * need.counters}, out.why)) {
      return out;
    }
  }
  Arena& arena = *arena_;
  auto flight = std::make_shared<Flight>();
  Places places;
  if (!arena.take(table.need, *flight, places)) {
    out.why = "device_ring_full";
    return out;
  }
  flight->serial = work.serial = ++serial_;
  flight->results = arena.results + places.row;
  flight->rows = rows;
  for (const Piece& piece : empty) {
    Result& result = arena.results[places.row + piece.entry.row];
    result.state = {};
    std::atomic_ref(result.stamp).store(work.serial, std::memory_order_release);
  }
  work.results = reinterpret_cast<Result*>(arena.results_device) + places.row;
  work.partials = reinterpret_cast<RowState*>(arena.partials_device) + places.partial;
  point_at_counters(work, reinterpret_cast<unsigned*>(arena.counters_device) + places.counter);
  Status status = 0;
  if (is_inline) {
    for (std::size_t i = 0; i < pieces.size(); ++i) work.inlined[i] = pieces[i].entry;
  } else {
    write_blob(pieces, layout, arena.blob + places.blob);
    point_into_blob(work, layout, arena.blob_device + places.blob);
    status = driver_->copy_to_device(arena.blob_device + places.blob, arena.blob + places.blob,
                                     layout.bytes, stream);
  }
  if (status == 0 && !pieces.empty()) status = launch_kernel(work, stream);
  if (status != 0) {
    // Its memory stays taken: the device may still write there.
    out.why = broken_ = "a kernel could not be launched: " + driver_->name_of(status);
    return out;
  }
  arena.flights.push_back(flight);
  out.launch = std::make_shared<Launch>(arena_, std::move(flight));
  return out;
}

Pointer CudaDevice::lasting(std::size_t bytes, Status& status) {
  bytes = (bytes + 255) / 256 * 256;
  if (bytes > lasting_left_) {
    const std::size_t block = std::max(bytes, kLastingBytes);
    status = driver_->device_alloc(&lasting_, block);
    if (status == 0) status = driver_->set_words(lasting_, 0, block / 4, own_stream_);
    lasting_left_ = status == 0 ? block : 0;
    if (status != 0) return 0;
  }
  lasting_left_ -= bytes;
  return std::exchange(lasting_, lasting_ + bytes);
}

// A graph keeps the addresses it was captured with, so what it uses is never used again. Its
// table is on the device before the first replay, by a stream that is not captured.
Launched CudaDevice::launch_captured(const std::vector<Piece>& given, Work& work, Stream stream,
                                     const std::shared_ptr<ReplayInbox>& inbox) {
  Launched out;
  if (given.empty()) {
    out.why = "empty_in_graph";
    return out;
  }
  std::vector<Piece> pieces = given;
  const Relaxed relaxed(*driver_);
  const Table table = lay_out(pieces);
  const BlobLayout layout(pieces.size(), table.chunks, table.strided);
  Status status = 0;
  const Pointer partials = lasting(table.need.partials * sizeof(RowState) + 1, status);
  const Pointer counters = lasting(table.need.counters * sizeof(unsigned) + 1, status);
  const Pointer blob = lasting(layout.bytes, status);
  std::vector<std::byte> staging(layout.bytes);
  write_blob(pieces, layout, staging.data());
  if (status == 0) {
    status = driver_->copy_to_device(blob, staging.data(), layout.bytes, own_stream_);
  }
  if (captures_.load() == 0 && status == 0) {
    for (std::size_t i = 0; i < window_now_.size(); ++i) {
      if (window_now_[i] == 0) continue;
      driver_->set_words(windows_ + 4 * i, static_cast<unsigned>(window_now_[i]), 1, own_stream_);
    }
  }
  if (status == 0) status = driver_->stream_wait(own_stream_);
  if (status != 0) {
    out.why = "no memory for a captured graph: " + driver_->name_of(status);
    return out;
  }
  point_into_blob(work, layout, blob);
  work.partials = reinterpret_cast<RowState*>(partials);
  point_at_counters(work, reinterpret_cast<unsigned*>(counters));
  work.tensors = static_cast<std::uint32_t>(pieces.size());
  work.chunks = table.chunks;
  {
    const std::lock_guard lock(replay_mutex_);
    inboxes_.push_back(inbox);
    work.launch = static_cast<std::uint32_t>(inboxes_.size());
  }
  status = launch_kernel(work, stream);
  if (status != 0) {
    out.why = "a kernel could not be captured: " + driver_->name_of(status);
    return out;
  }
  captures_.fetch_add(1, std::memory_order_release);
  out.captured = work.launch;
  return out;
}

void CudaDevice::set_window(int optimizer, std::int64_t window, Stream stream) {
  const std::lock_guard lock(mutex_);
  const auto index = static_cast<std::size_t>(optimizer);
  if (index >= window_now_.size()) return;
  window_now_[index] = static_cast<std::int32_t>(window);
  if (!has_captures()) return;
  const InContext in_context(*driver_, context_);
  Pointer at = windows_ + 4 * index;
  if (is_capturing(stream)) {
    void* parameters[] = {&at};
    driver_->launch(next_window_, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
  } else {
    driver_->set_words(at, static_cast<unsigned>(window), 1, stream);
  }
}

std::uint64_t CudaDevice::collect_replays() {
  const std::lock_guard lock(replay_mutex_);
  for (;;) {
    const Result& result = replay_results_[replays_taken_ % kReplays];
    if (std::atomic_ref(const_cast<std::uint64_t&>(result.stamp)).load(std::memory_order_acquire) !=
        replays_taken_ + 1) {
      break;
    }
    const std::uint32_t launch = result.launch;
    if (launch >= 1 && launch <= inboxes_.size()) {
      if (const auto inbox = inboxes_[launch - 1].lock()) {
        inbox->put({launch, result.row, result.window, result.state});
      }
    }
    ++replays_taken_;
    ring_words_[0] = replays_taken_;
  }
  return ring_words_[1];
}

}  // namespace trainmon::cuda
