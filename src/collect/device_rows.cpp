#include "collect/device_rows.h"

#include <algorithm>
#include <utility>

namespace trainmon {

// Filled on the writer thread, once every launch of the batch is done.
class DeviceRows::Values final : public LateValues {
 public:
  Values(std::vector<Waiting> waiting, std::function<void(Row&)> finish)
      : waiting_(std::move(waiting)), finish_(std::move(finish)) {}

  bool ready() const noexcept override {
    for (; ready_ < waiting_.size(); ++ready_) {
      if (!waiting_[ready_].launch->ready()) return false;
    }
    return true;
  }

  void fill(RecordBatch& batch) noexcept override {
    // The rows of all launches by their seq, as those of the batch are.
    struct Source {
      std::uint64_t seq;
      const cuda::Launch* launch;
      std::size_t index;
    };
    std::vector<Source> sources;
    for (const Waiting& waiting : waiting_) {
      for (std::size_t i = 0; i < waiting.rows.size(); ++i) {
        sources.push_back({waiting.rows[i].key.seq, waiting.launch.get(), i});
      }
    }
    std::ranges::sort(sources, {}, &Source::seq);
    auto source = sources.begin();
    for (Row& row : batch.rows) {  // a full queue may have dropped some
      while (source != sources.end() && source->seq < row.key.seq) ++source;
      if (source == sources.end()) return;
      row.state = source->launch->state(source->index);
      finish_(row);
    }
  }

 private:
  const std::vector<Waiting> waiting_;
  const std::function<void(Row&)> finish_;
  mutable std::size_t ready_ = 0;
};

std::string DeviceRows::launch(DeviceSweep& sweep, double eps) {
  if (sweep.rows.empty()) return "";
  const cuda::Launched launched = sweep.device->launch(sweep.order, eps, sweep.stream, inbox_);
  if (launched) {
    const std::lock_guard lock(mutex_);
    if (streams_.insert_or_assign(sweep.device, sweep.stream).second) {
      sweep.device->set_window(sweep.optimizer, sweep.rows[0].key.window, sweep.stream);
    }
    if (launched.captured != 0) {
      captured_[launched.captured] = sweep.rows;
    } else {
      waiting_.push_back({sweep.rows, launched.launch});
    }
  }
  sweep.clear();
  return launched ? "" : launched.why;
}

RecordBatch DeviceRows::seal() {
  RecordBatch batch;
  const std::lock_guard lock(mutex_);
  if (waiting_.empty()) return batch;
  for (const Waiting& waiting : waiting_) {
    batch.rows.insert(batch.rows.end(), waiting.rows.begin(), waiting.rows.end());
  }
  if (waiting_.size() > 1) {
    std::ranges::sort(batch.rows, {}, [](const Row& row) { return row.key.seq; });
  }
  batch.late = std::make_shared<Values>(std::exchange(waiting_, {}), finish_);
  return batch;
}

void DeviceRows::set_window(int optimizer, std::int64_t window) {
  const std::lock_guard lock(mutex_);
  for (const auto& [device, stream] : streams_) device->set_window(optimizer, window, stream);
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
