// What the tests of CUDA devices share: tensors on devices of the driver stand-in, and a monitor
// whose rows are kept.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "monitor/monitor_fixture.h"
#include "stats/driver_stand_in.h"
#include "trainmon/monitor.h"
#include "trainmon/sink.h"
#include "trainmon/stat.h"

namespace trainmon::testing {

// A device that nobody has used: its driver calls begin anew, and its context is whole.
inline int fresh_device() {
  static int next = 0;
  return next++;
}

// Tensors that lie in one allocation of a device.
class DeviceTensors {
 public:
  explicit DeviceTensors(int device, std::size_t bytes = std::size_t{1} << 24)
      : device_(device),
        bytes_(bytes),
        memory_(static_cast<std::byte*>(stand_in::allocate(device, bytes))) {}
  ~DeviceTensors() { stand_in::deallocate(memory_); }
  DeviceTensors(const DeviceTensors&) = delete;
  DeviceTensors& operator=(const DeviceTensors&) = delete;

  // Without gaps. The elements are random bits, of floats finite and of ordinary size.
  TensorView make(DType dtype, std::vector<std::int64_t> sizes, void* stream) {
    extents_.push_back(std::make_unique<std::vector<std::int64_t>>(std::move(sizes)));
    TensorView view;
    view.dtype = dtype;
    view.sizes = extents_.back()->data();
    view.ndim = static_cast<std::int32_t>(extents_.back()->size());
    view.device = Device::cuda;
    view.device_index = device_;
    view.stream = stream;
    std::byte* to = take(static_cast<std::size_t>(element_count(view)) * dtype_size(dtype));
    view.data = to;
    fill(to, static_cast<std::size_t>(element_count(view)), dtype);
    return view;
  }
  // Every second row of a matrix of this many columns.
  TensorView with_gaps(std::int64_t rows, std::int64_t columns, void* stream) {
    TensorView view = make(DType::float32, {2 * rows, columns}, stream);
    extents_.push_back(
        std::make_unique<std::vector<std::int64_t>>(std::vector{rows, columns, 2 * columns, 1L}));
    view.sizes = extents_.back()->data();
    view.strides = view.sizes + 2;
    return view;
  }

 private:
  std::byte* take(std::size_t bytes) {
    bytes = (bytes + 15) / 16 * 16;
    if (used_ + bytes > bytes_) throw std::bad_alloc();
    return memory_ + std::exchange(used_, used_ + bytes);
  }
  void fill(std::byte* to, std::size_t elements, DType dtype) {
    for (std::size_t i = 0; i < elements; ++i) {
      const auto bits = static_cast<std::uint32_t>(random_());
      const float value = static_cast<float>(static_cast<int>(bits % 20001) - 10000) / 4096.0f;
      std::uint32_t high = 0;
      std::memcpy(&high, &value, 4);
      high >>= 16;  // of a float32 the bfloat16
      const double wide = value;
      switch (dtype) {
        case DType::float32:
          std::memcpy(to + 4 * i, &value, 4);
          break;
        case DType::bfloat16:
          std::memcpy(to + 2 * i, &high, 2);
          break;
        case DType::float64:
          std::memcpy(to + 8 * i, &wide, 8);
          break;
        default:
          std::memset(to + i * dtype_size(dtype), static_cast<int>(bits % 64), dtype_size(dtype));
      }
    }
  }

  const int device_;
  const std::size_t bytes_;
  std::byte* const memory_;
  std::size_t used_ = 0;
  std::mt19937 random_{1};
  std::vector<std::unique_ptr<std::vector<std::int64_t>>> extents_;
};

// Keeps the rows that it is given, in the order of their seq within each batch.
struct KeptRows {
  std::mutex mutex;
  std::vector<Row> rows;
  std::vector<RowCheck> checks;
};
class KeepingSink final : public Sink {
 public:
  explicit KeepingSink(std::shared_ptr<KeptRows> kept) : kept_(std::move(kept)) {}
  std::string_view name() const override { return "kept"; }
  void open(const RunInfo&, const SeriesTable&) override {}
  void write(const RecordBatch& batch) override {
    const std::lock_guard lock(kept_->mutex);
    kept_->rows.insert(kept_->rows.end(), batch.rows.begin(), batch.rows.end());
    kept_->checks.insert(kept_->checks.end(), batch.checks.begin(), batch.checks.end());
  }
  void flush() override {}
  void close() override {}

 private:
  std::shared_ptr<KeptRows> kept_;
};

// Of which stop() waits a half for values that may come.
inline constexpr double kStopTimeout = 60.0;

// A monitor with one optimizer.
struct DeviceMonitor {
  Scratch scratch;
  std::shared_ptr<KeptRows> kept = std::make_shared<KeptRows>();
  std::unique_ptr<Monitor> monitor;
  std::vector<SeriesId> series;

  explicit DeviceMonitor(std::size_t tensors = 0, std::optional<double> budget = std::nullopt,
                         bool checks = false) {
    Config config = scratch.config();
    config.checks = checks;
    config.budget = budget;
    config.queue_mb = 1024;
    config.flush_seconds = 600;  // replays are collected when a test ends
    config.stop_timeout_seconds = kStopTimeout;
    MonitorParts parts;
    parts.sinks.push_back(std::make_unique<KeepingSink>(kept));
    monitor = std::make_unique<Monitor>(config, Identity{}, std::move(parts));
    monitor->add_optimizer(0);
    for (std::size_t i = 0; i < tensors; ++i) {
      series.push_back(series_of(*monitor, "t" + std::to_string(i)));
    }
  }

  // A sweep around the step of the optimizer.
  std::vector<Observed> sweep(const std::vector<TensorView>& tensors) {
    std::vector<Observed> done(tensors.size(), Observed::idle);
    monitor->begin_attempt(0);
    monitor->observe_all({series.data(), tensors.size()}, tensors, done);
    monitor->end_attempt(0, Fate::taken, 1.0);
    monitor->seal(Moment::after_step);
    return done;
  }
  std::vector<Row> rows() {
    monitor->settle(10.0);
    const std::lock_guard lock(kept->mutex);
    return kept->rows;
  }
};

}  // namespace trainmon::testing
