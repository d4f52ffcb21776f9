// Rows whose values a CUDA device computes: launched together and sealed as a late batch. A
// launch that was captured in a graph gives one more row for every replay.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "stats/cuda/device.h"
#include "trainmon/reading.h"
#include "trainmon/record.h"

namespace trainmon {

// Tensors of one device, for one launch on one stream. Reused, so that nothing is allocated.
struct DeviceSweep {
  cuda::CudaDevice* device = nullptr;
  int device_index = 0;
  void* stream = nullptr;
  cuda::Pieces pieces;
  std::vector<Row> rows;
  struct Check {
    std::size_t row = 0;
    std::int32_t place = cuda::kNoCheck;  // as add_check() says
    bool has_sketch = true;
  };
  std::vector<Check> checks;          // of some of the rows, in their order
  int optimizer = 0;                  // of the first row
  const TensorView* scale = nullptr;  // what those of its device and stream are divided by
  Reading* keep = nullptr;            // gets what is read of the first row

  bool takes(const TensorView& tensor) const {
    return rows.empty() || (device_index == tensor.device_index && stream == tensor.stream);
  }
  void clear() {
    device = nullptr;
    pieces.clear();
    rows.clear();
    checks.clear();
  }
};

// Thread-safe.
class DeviceRows {
 public:
  // `finish` completes a row whose state has arrived: flags, and what is told of it. Called on the
  // writer thread; must outlive this and every batch sealed.
  explicit DeviceRows(std::function<void(Row&)> finish) : finish_(std::move(finish)) {}

  // Launches what `sweep` holds and clears it. "" or why none of it will be measured.
  std::string launch(DeviceSweep& sweep, double eps);
  // Adds a row, which has its seq, of a tensor of which this was read.
  void repeat(const Row& row, const Reading& reading);
  // The rows launched so far as a batch that waits for them; none leaves it empty.
  RecordBatch seal();
  // The optimizer's window has ended and this one is open, for whatever runs on the device later.
  void set_window(int optimizer, std::int64_t window);
  // Asks each device in use, without waiting, whether its values will ever come.
  void look_for_loss();
  // Whether launches on the devices in use are timed, and what those took that were: the longest
  // of the devices that answer, in seconds.
  void time_launches(bool on);
  std::optional<double> launch_seconds();
  // A row for every replay since the last call, without its seq.
  std::vector<Row> collect_replays();
  // Rows of replays that found no room, as far as collect_replays() has seen.
  std::uint64_t replays_lost() const { return lost_.load(std::memory_order_relaxed); }

 private:
  struct Launch {
    std::shared_ptr<const cuda::Launch> results;
    bool is_scaled = false;  // divided by what was measured last in it
    std::uint32_t scale = 0;
  };
  // Where the value of a row will be.
  struct Place {
    std::uint64_t seq = 0;  // of the row
    std::uint32_t launch = 0;
    std::uint32_t index = 0;
  };
  // A check, and where its values will be.
  struct CheckPlace {
    RowCheck check;
    std::uint32_t launch = 0;
    std::uint32_t index = 0;
  };
  class Values;

  // Of a launch that has them; `apart`: the first result of those apart.
  void add_checks(const DeviceSweep& sweep, std::uint32_t launch, std::uint32_t apart);
  // Puts what replays left into inboxes; how many rows found no room so far, in this process.
  std::uint64_t empty_rings();

  const std::function<void(Row&)> finish_;
  std::mutex mutex_;
  std::vector<Row> rows_;  // launched since the last seal,
  std::vector<Place> places_;
  std::vector<CheckPlace> checks_;
  std::vector<Launch> launches_;
  bool is_ordered_ = true;                      // by seq
  std::map<cuda::CudaDevice*, void*> streams_;  // used last, of every device in use
  std::map<std::uint32_t, std::vector<Row>> captured_;
  std::shared_ptr<cuda::ReplayInbox> inbox_ = std::make_shared<cuda::ReplayInbox>();
  std::uint64_t lost_before_ = 0;  // the first capture of this
  std::atomic<std::uint64_t> lost_{0};
  // The scale that arrived last. Shared with batches, which may outlive this.
  std::shared_ptr<std::atomic<double>> scale_ = std::make_shared<std::atomic<double>>(1.0);
};

}  // namespace trainmon
