#include "collect/device_rows.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "stats/divide.h"

namespace trainmon {

// Filled on the writer thread, once every launch of the batch is done.
class DeviceRows::Values final : public LateValues {
 public:
  Values(std::function<void(Row&)> finish, std::shared_ptr<std::atomic<double>> scale)
      : finish_(std::move(finish)), scale_(std::move(scale)) {}
  void take(std::vector<Waiting>&& waiting) noexcept { waiting_ = std::move(waiting); }

  bool ready() const noexcept override {
    for (; ready_ < waiting_.size(); ++ready_) {
      if (!waiting_[ready_].launch->ready()) return false;
    }
    return true;
  }

  bool lost() const noexcept override { return !ready() && waiting_[ready_].launch->lost(); }

  void fill(RecordBatch& batch) noexcept override {
    // A full queue may have dropped rows; those left are still in order.
    std::size_t next = 0;
    for (Row& row : batch.rows) {
      while (next < waiting_.size() && waiting_[next].row.key.seq != row.key.seq) ++next;
      if (next == waiting_.size()) return;
      const Waiting& waiting = waiting_[next];
      row.state = waiting.launch->state(waiting.index);
      if (waiting.is_scaled) unscale(row, waiting.launch->state(waiting.scale).max);
      finish_(row);
    }
  }

 private:
  void unscale(Row& row, double scale) {
    if (!(scale > 0.0) || std::isinf(scale)) {
      row.key.flags |= flag::kStillScaled;
      return;
    }
    divide(row.state, scale);
    scale_->store(scale, std::memory_order_relaxed);
  }

  std::vector<Waiting> waiting_;
  const std::function<void(Row&)> finish_;
  const std::shared_ptr<std::atomic<double>> scale_;
  mutable std::size_t ready_ = 0;
};

std::string DeviceRows::launch(DeviceSweep& sweep, double eps) {
  if (sweep.pieces.empty()) return "";
  const auto rows = static_cast<std::uint32_t>(sweep.rows.size());
  bool is_scaled = false;
  if (sweep.scale != nullptr) {
    std::string why;
    sweep.pieces.emplace_back();
    is_scaled = sweep.scale->device == Device::cuda &&
                sweep.scale->device_index == sweep.device_index &&
                sweep.scale->stream == sweep.stream &&
                cuda::describe(*sweep.scale, sweep.pieces.back(), why);
    if (is_scaled) {
      eps *= scale_->load(std::memory_order_relaxed);
    } else {
      sweep.pieces.pop_back();
    }
  }
  const cuda::Launched launched = sweep.device->launch(sweep.pieces, eps, sweep.stream, inbox_);
  if (launched) {
    const std::lock_guard lock(mutex_);
    if (streams_.insert_or_assign(sweep.device, sweep.stream).second) {
      sweep.device->set_window(sweep.optimizer, sweep.rows[0].key.window, sweep.stream);
    }
    // Replays bring rows alone.
    if (sweep.scale != nullptr && (!is_scaled || launched.captured != 0)) {
      for (Row& row : sweep.rows) row.key.flags |= flag::kStillScaled;
    }
    if (launched.captured != 0) {
      captured_[launched.captured] = sweep.rows;
    } else {
      for (std::size_t i = 0; i < sweep.rows.size(); ++i) {
        const auto index = static_cast<std::uint32_t>(i);
        waiting_.push_back({sweep.rows[i], launched.launch, index, is_scaled, rows});
      }
    }
  }
  sweep.clear();
  return launched ? "" : launched.why;
}

RecordBatch DeviceRows::seal() {
  RecordBatch batch;
  const std::lock_guard lock(mutex_);
  if (waiting_.empty()) return batch;
  std::ranges::sort(waiting_, {}, [](const Waiting& w) { return w.row.key.seq; });
  batch.rows.reserve(waiting_.size());
  for (const Waiting& waiting : waiting_) batch.rows.push_back(waiting.row);
  auto values = std::make_shared<Values>(finish_, scale_);  // what may fail comes first
  values->take(std::exchange(waiting_, {}));
  batch.late = std::move(values);
  return batch;
}

void DeviceRows::set_window(int optimizer, std::int64_t window) {
  const std::lock_guard lock(mutex_);
  for (const auto& [device, stream] : streams_) device->set_window(optimizer, window, stream);
}

void DeviceRows::look_for_loss() {
  const std::lock_guard lock(mutex_);
  for (const auto& [device, stream] : streams_) device->look_for_loss();
}

std::vector<Row> DeviceRows::collect_replays() {
  std::vector<Row> rows;
  const std::lock_guard lock(mutex_);
  if (captured_.empty()) return rows;
  lost_ = 0;
  for (const auto& [device, stream] : streams_) lost_ += device->collect_replays();
  for (const cuda::Replay& replay : inbox_->take()) {
    const auto found = captured_.find(replay.launch);
    if (found == captured_.end() || replay.row >= found->second.size()) continue;
    rows.push_back(found->second[replay.row]);
    rows.back().key.window = replay.window;
    rows.back().state = replay.state;
    finish_(rows.back());
  }
  return rows;
}

}  // namespace trainmon
