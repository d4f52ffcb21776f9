// Launches that are captured in a graph, and the rows that its replays leave.
#include <algorithm>
#include <cstring>
#include <utility>

#include "stats/cuda/arena.h"
#include "stats/cuda/current_context.h"
#include "stats/cuda/device.h"
#include "stats/cuda/launch_table.h"

namespace trainmon::cuda {
namespace {

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
Launched CudaDevice::launch_captured(Pieces& pieces, CheckedWork& work, Stream stream,
                                     const std::shared_ptr<ReplayInbox>& inbox) {
  Launched out;
  if (pieces.empty()) {
    out.why = "empty_in_graph";
    return out;
  }
  const Relaxed relaxed(*driver_);
  const Table table = lay_out(pieces.entries);
  const BlobLayout layout(pieces.size(), table.chunks, pieces.gaps.size());
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
  status = launch_kernel(work, false, stream);
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
  if (in_context.status() != 0) return;
  Pointer at = windows_ + 4 * index;
  const std::optional<bool> captured = is_capturing(stream);
  if (captured.value_or(false)) {
    void* parameters[] = {&at};
    driver_->launch(next_window_, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
  } else {
    driver_->set_words(at, static_cast<unsigned>(window), 1, captured ? stream : own_stream_);
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
    std::atomic_ref(ring_words_[0]).store(replays_taken_, std::memory_order_release);
  }
  return std::atomic_ref(ring_words_[1]).load(std::memory_order_relaxed);
}

}  // namespace trainmon::cuda
