#include "collect/device_rows.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "stats/check.h"
#include "stats/divide.h"

namespace trainmon {

// Filled on the writer thread, once every launch of the batch is done.
class DeviceRows::Values final : public LateValues {
 public:
  Values(std::function<void(Row&)> finish, std::shared_ptr<std::atomic<double>> scale)
      : finish_(std::move(finish)), scale_(std::move(scale)) {}
  void take(std::vector<Place>&& places, std::vector<CheckPlace>&& checks,
            std::vector<Launch>&& launches) noexcept {
    places_ = std::move(places);
    checks_ = std::move(checks);
    launches_ = std::move(launches);
  }

  bool ready() const noexcept override {
    for (; ready_ < launches_.size(); ++ready_) {
      if (!launches_[ready_].results->ready()) return false;
    }
    return true;
  }

  bool lost() const noexcept override { return !ready() && launches_[ready_].results->lost(); }

  void fill(RecordBatch& batch) noexcept override {
    fill_checks(batch);
    // A full queue may have dropped rows; those left are still in order.
    std::size_t next = 0;
    for (Row& row : batch.rows) {
      while (next < places_.size() && places_[next].seq != row.key.seq) ++next;
      if (next == places_.size()) return;
      const Launch& launch = launches_[places_[next].launch];
      row.state = launch.results->state(places_[next].index);
      if (launch.is_scaled) unscale(row, launch.results->state(launch.scale).max);
      finish_(row);
    }
  }

 private:
  // As with rows: some may have been dropped.
  void fill_checks(RecordBatch& batch) const {
    std::size_t next = 0;
    for (RowCheck& check : batch.checks) {
      while (next < checks_.size() && checks_[next].check.seq != check.seq) ++next;
      if (next == checks_.size()) return;
      const Launch& launch = launches_[checks_[next].launch];
      const double scale = launch.is_scaled ? launch.results->state(launch.scale).max : 1.0;
      const cuda::CheckSums sums = launch.results->check(checks_[next].index);
      RowCheck taken = row_check(sums.fingerprint, sums.sketch, is_a_scale(scale) ? scale : 1.0);
      taken.seq = check.seq;
      taken.has_sketch = check.has_sketch;
      if (!taken.has_sketch) taken.sketch = {};
      check = taken;
    }
  }

  static bool is_a_scale(double scale) { return scale > 0.0 && !std::isinf(scale); }
  void unscale(Row& row, double scale) {
    if (!is_a_scale(scale)) {
      row.key.flags |= flag::kStillScaled;
      return;
    }
    divide(row.state, scale);
    scale_->store(scale, std::memory_order_relaxed);
  }

  std::vector<Place> places_;
  std::vector<CheckPlace> checks_;
  std::vector<Launch> launches_;
  const std::function<void(Row&)> finish_;
  const std::shared_ptr<std::atomic<double>> scale_;
  mutable std::size_t ready_ = 0;
};

std::string DeviceRows::launch(DeviceSweep& sweep, double eps) {
  if (sweep.pieces.empty()) return "";
  const auto rows = static_cast<std::uint32_t>(sweep.rows.size());
  bool is_scaled = false;
  if (sweep.scale != nullptr) {
    is_scaled = sweep.scale->device == Device::cuda &&
                sweep.scale->device_index == sweep.device_index &&
                sweep.scale->stream == sweep.stream &&
                cuda::describe(*sweep.scale, sweep.pieces) == nullptr;
    if (is_scaled) eps *= scale_->load(std::memory_order_relaxed);
  }
  const auto apart = static_cast<std::uint32_t>(sweep.pieces.size());  // where those begin
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
      if (captured_.empty()) lost_before_ = empty_rings();
      captured_[launched.captured] = sweep.rows;
    } else {
      const auto launch = static_cast<std::uint32_t>(launches_.size());
      if (!rows_.empty() && rows_.back().key.seq > sweep.rows[0].key.seq) is_ordered_ = false;
      launches_.push_back({launched.launch, is_scaled, rows});
      for (std::uint32_t i = 0; i < rows; ++i) {
        places_.push_back({sweep.rows[i].key.seq, launch, i});
      }
      rows_.insert(rows_.end(), sweep.rows.begin(), sweep.rows.end());
      if (launched.launch->has_checks()) add_checks(sweep, launch, apart);
      if (sweep.keep != nullptr) sweep.keep->launch = launched.launch;
    }
  }
  sweep.clear();
  return launched ? "" : launched.why;
}

void DeviceRows::repeat(const Row& row, const Reading& reading) {
  const std::lock_guard lock(mutex_);
  if (!rows_.empty() && rows_.back().key.seq > row.key.seq) is_ordered_ = false;
  places_.push_back({row.key.seq, static_cast<std::uint32_t>(launches_.size()), 0});
  launches_.push_back({std::static_pointer_cast<const cuda::Launch>(reading.launch), false, 1});
  rows_.push_back(row);
}

void DeviceRows::add_checks(const DeviceSweep& sweep, std::uint32_t launch, std::uint32_t apart) {
  for (const DeviceSweep::Check& one : sweep.checks) {
    CheckPlace& added = checks_.emplace_back();
    added.check.seq = sweep.rows[one.row].key.seq;
    added.check.has_sketch = one.has_sketch;
    added.launch = launch;
    const bool is_apart = one.place != cuda::kWithState;
    added.index = is_apart ? apart + static_cast<std::uint32_t>(one.place)
                           : static_cast<std::uint32_t>(one.row);
  }
}

RecordBatch DeviceRows::seal() {
  RecordBatch batch;
  const std::lock_guard lock(mutex_);
  if (rows_.empty()) return batch;
  if (!is_ordered_) {
    std::ranges::sort(rows_, {}, [](const Row& row) { return row.key.seq; });
    std::ranges::sort(places_, {}, &Place::seq);
    std::ranges::sort(checks_, {}, [](const CheckPlace& place) { return place.check.seq; });
  }
  auto values = std::make_shared<Values>(finish_, scale_);  // what may fail comes first,
  std::vector<Row> next;                                    // and the next ones are about as many
  next.reserve(rows_.size());
  batch.checks.reserve(checks_.size());
  for (const CheckPlace& place : checks_) batch.checks.push_back(place.check);
  values->take(std::exchange(places_, {}), std::exchange(checks_, {}),
               std::exchange(launches_, {}));
  batch.rows = std::exchange(rows_, std::move(next));
  batch.late = std::move(values);
  is_ordered_ = true;
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

void DeviceRows::time_launches(bool on) {
  const std::lock_guard lock(mutex_);
  for (const auto& [device, stream] : streams_) device->time_launches(on);
}

std::optional<double> DeviceRows::launch_seconds() {
  const std::lock_guard lock(mutex_);
  std::optional<double> longest;
  for (const auto& [device, stream] : streams_) {
    if (const auto took = device->launch_seconds()) longest = std::max(*took, longest.value_or(0));
  }
  return longest;
}

std::uint64_t DeviceRows::empty_rings() {
  std::uint64_t lost = 0;
  for (const auto& [device, stream] : streams_) lost += device->collect_replays();
  return lost;
}

std::vector<Row> DeviceRows::collect_replays() {
  std::vector<Row> rows;
  const std::lock_guard lock(mutex_);
  if (captured_.empty()) return rows;
  lost_.store(empty_rings() - lost_before_, std::memory_order_relaxed);
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
