// One CUDA device: its memory, launches on the streams of training, and the results they leave in
// mapped host memory. Nothing here waits for the device unless it says so.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "stats/cuda/arena.h"
#include "stats/cuda/driver.h"
#include "stats/cuda/launch_table.h"
#include "stats/cuda/launch_timer.h"
#include "stats/cuda/stream_memory.h"
#include "stats/cuda/work.h"

namespace trainmon::cuda {

inline constexpr std::uint64_t kReplays = 16384;  // results that wait for the writer thread

// What a captured launch found, each time its graph was replayed.
struct Replay {
  std::uint32_t launch = 0;
  std::uint32_t row = 0;
  std::int64_t window = 0;
  RowState state;
};
// Where replays wait for the writer thread of one monitor. Thread-safe.
class ReplayInbox {
 public:
  void put(const Replay& replay);
  std::vector<Replay> take();

 private:
  std::mutex mutex_;
  std::vector<Replay> replays_;
};

// What became of a call. `captured`: the stream is being captured; results come by the inbox, under
// this number, for every replay.
struct Launched {
  std::shared_ptr<Launch> launch;
  std::uint32_t captured = 0;
  std::string why;  // set when nothing was launched
  explicit operator bool() const { return launch != nullptr || captured != 0; }
};

// Thread-safe. Made on first use, never destroyed: the driver may be gone before static objects.
class CudaDevice {
 public:
  // nullptr where there are no kernels for it; `why` says which is missing.
  static CudaDevice* of(int index, std::string& why);

  // One kernel for all of them, on `stream`; `pieces` is left in any state. `inbox` may be null:
  // then a capture is refused.
  // Checks are not taken in a captured graph, nor where their kernel cannot be loaded: then the
  // launch has none.
  Launched launch(Pieces& pieces, double eps, Stream stream,
                  const std::shared_ptr<ReplayInbox>& inbox);
  // Memory for this many tensors and elements in one launch, with checks or without, so that none
  // is needed later.
  void reserve(std::size_t tensors, std::int64_t bytes, bool with_checks);

  // In what is launched on `stream` from now on, `optimizer` is in this window: needed once
  // there are captured launches, and nothing before. In a capture: one further with each replay.
  void set_window(int optimizer, std::int64_t window, Stream stream);
  bool has_captures() const { return captures_.load(std::memory_order_acquire) > 0; }
  // Asks the driver, without waiting, whether an error has ended what the device does in this
  // process. Then no launch that is under way becomes ready, and all of them are lost().
  void look_for_loss();
  // Whether launches are timed from now on; those in captured graphs are not. What they took, in
  // seconds of the device, as LaunchTimer::take() says.
  void time_launches(bool on);
  std::optional<double> launch_seconds();
  // Puts what replays have left into the inboxes; how many found no room so far.
  std::uint64_t collect_replays();

 private:
  CudaDevice() = default;
  bool start(int index, std::string& why);
  // nullopt: the driver does not say, as of the stream 0 while another stream is captured.
  std::optional<bool> is_capturing(Stream stream);
  // Why a call failed. After an error that ends everything, nothing is launched any more.
  std::string failed(const char* what, Status status);
  // Takes the memory of an arena that it has not yet.
  Status complete(Arena& arena);
  // Another arena, at least as large in everything; the old one lives as long as its launches. What
  // a failure leaves is kept for the next call.
  bool grow(const Need& need, std::string& why);
  // An arena that `need` fits into.
  bool make_room(const Need& need, std::string& why);
  Launched launch_captured(Pieces& pieces, CheckedWork& work, Stream stream,
                           const std::shared_ptr<ReplayInbox>& inbox);
  Status launch_kernel(CheckedWork& work, bool with_checks, Stream stream);
  // Whether there is the kernel with checks. It is loaded when it is first asked for.
  bool load_checked();
  // The table of a launch, on its way to this place of the arena.
  Status send_table(const Pieces& pieces, const BlobLayout& layout, std::size_t at,
                    CheckedWork& work, Stream stream);
  Pointer lasting(std::size_t bytes, Status& status);

  const Driver* driver_ = nullptr;
  Context context_ = nullptr;
  Function measure_ = nullptr;
  Function measure_checked_ = nullptr;
  int checked_tries_ = 0;  // to load it that failed
  Function next_window_ = nullptr;
  std::string name_;
  unsigned grid_ = 0;   // blocks at most
  std::string broken_;  // set when a launch failed for good

  std::mutex mutex_;
  std::shared_ptr<Arena> arena_;
  std::shared_ptr<Arena> unfinished_;  // of a grow() that failed
  bool is_stale_ = false;              // arena_ may still be written to by a launch that failed
  int failures_ = 0;                   // launches in a row
  std::atomic<bool> is_lost_{false};
  std::uint64_t serial_ = 0;
  LaunchTimer timer_;
  StreamMemory stream_memory_;

  // for captured graphs
  Stream own_stream_ = nullptr;
  Pointer windows_ = 0;  // std::int32_t each
  std::array<std::int32_t, 256> window_now_{};
  ReplayRing ring_ = {};                    // addresses of the device
  const Result* replay_results_ = nullptr;  // the same memory
  std::uint64_t replays_taken_ = 0;
  std::uint64_t* ring_words_ = nullptr;  // tail, dropped
  std::mutex replay_mutex_;
  std::vector<std::weak_ptr<ReplayInbox>> inboxes_;  // by captured launch - 1
  std::atomic<std::uint32_t> captures_{0};
  Pointer lasting_ = 0;
  std::size_t lasting_left_ = 0;
};

}  // namespace trainmon::cuda
