// Observations become rows: measures a tensor, addresses the row, and seals what has gathered.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "collect/device_rows.h"
#include "collect/name_limits.h"
#include "collect/open_batch.h"
#include "collect/series_registry.h"
#include "collect/windows.h"
#include "recorder/flight_recorder.h"
#include "trainmon/probe.h"
#include "trainmon/record.h"

namespace trainmon {

struct UpdateFormula;

// Where a row belongs, when the caller knows better than the series' optimizer.
struct Address {
  std::int64_t window = 0;
  std::int32_t accum = 0;
  std::int32_t call = 0;
};

struct CollectorOptions {
  Schedule schedule;
  double eps = kDefaultEps;
  int threads = 1;
  int clock = 0;
  bool checks = false;
  std::size_t max_series = SeriesRegistry::kMost;
  std::size_t max_scalars = 10'000;
  int rank = 0;  // by which samples are drawn
};

// Thread-safe. `submit` takes sealed batches in order and must not wait for long; `late_ready` is
// called when values of a late batch have arrived.
class Collector {
 public:
  using Submit = std::function<void(RecordBatch&&)>;
  using LateReady = std::function<void()>;

  Collector(CollectorOptions options, Submit submit, LateReady late_ready);

  // From now on, before any thread is there but this one. It must outlive every batch.
  void record_in(FlightRecorder* recorder) { recorder_ = recorder; }
  // For the recorder alone; nothing without one.
  void note_stage(FlightStage stage, int optimizer);
  void note_collective(const CollectiveCall& call);

  SeriesRegistry& series() { return series_; }
  const SeriesRegistry& series() const { return series_; }
  const ScalarNames& scalar_names() const { return scalar_names_; }
  Windows& windows() { return windows_; }
  const Windows& windows() const { return windows_; }

  // Measures on the calling thread. The tensor must be on the CPU.
  void observe(SeriesId series, const TensorView& tensor, std::uint32_t flags);
  void observe_at(SeriesId series, const TensorView& tensor, const Address& address,
                  std::uint32_t flags, Reading* keep = nullptr);
  // A row of an estimate from one block in n of 2 or more (stats/sample.h). What is too short, or
  // not dense, is read whole; with n = 0 all is.
  // `keep` gets what was read.
  void observe_sample(SeriesId series, const TensorView& tensor, const Address& address, int n,
                      std::uint32_t flags, Reading* keep = nullptr);
  // A row of a tensor of which this was read before.
  void observe_again(SeriesId series, const TensorView& tensor, const Address& address,
                     std::uint32_t flags, const Reading& reading);
  // A row of the tensor divided by `scale`, which must be positive and finite.
  void observe_scaled(SeriesId series, const TensorView& tensor, double scale, std::uint32_t flags);
  // A row of the step that the formula takes (stats/update.h); none where it is not finite, for it
  // is no tensor of training. Throws as measure() of a formula.
  void observe_update(SeriesId series, const UpdateFormula& formula);
  // A row of a tensor that the whole model is given and, of ids, one of their entropy
  // (stats/entropy.h). None where minus infinity is the only value that is not finite: a mask.
  void observe_input(SeriesId series, SeriesId entropy, const TensorView& tensor,
                     const Address& address);
  // Adds a tensor that `sweep` takes to what the next launch_on_device() measures. False, with no
  // row, where there are no kernels for it; throws std::invalid_argument for a layout they do not
  // have.
  bool observe_on_device(DeviceSweep& sweep, SeriesId series, const TensorView& tensor,
                         std::uint32_t flags, const std::optional<Address>& address = std::nullopt);
  // "" or why its tensors are not measured by kernels here.
  std::string reserve_device(int device, std::int64_t tensors, std::int64_t bytes);
  // "" or why the rows were not measured.
  std::string launch_on_device(DeviceSweep& sweep);
  // What replays of captured graphs have left becomes rows.
  void collect_replays();
  void look_for_lost_devices() { device_.look_for_loss(); }
  // Events around launches, for the budget.
  void time_launches(bool on) { device_.time_launches(on); }
  std::optional<double> device_seconds() { return device_.launch_seconds(); }
  // The optimizer's window has closed.
  void window_closed(int optimizer) { device_.set_window(optimizer, windows_.window(optimizer)); }
  std::uint64_t replays_lost() const { return device_.replays_lost(); }
  void add_late_row(SeriesId series, DType dtype, std::span<const std::int64_t> sizes,
                    const Address& address, std::uint32_t flags);
  std::int64_t seal_late();
  // False for an unknown ticket or a number of states, or of checks, that is not the number of
  // rows.
  bool fulfil(std::int64_t ticket, std::span<const RowState> states,
              std::span<const std::optional<RowCheck>> checks = {});
  // The index in the full tensor of the first element, where a check is taken. The tensor's data
  // are not looked at.
  std::optional<std::int64_t> checked_from(SeriesId series, const TensorView& tensor) const;
  // Not of a name that scalar_names() does not take.
  void add_scalar(std::string_view name, double value,
                  std::optional<std::int64_t> window = std::nullopt);
  void declare(Declared declared);
  void add_payload(Payload payload);
  void add_payload_at(Payload payload);
  // Measures on the calling thread, then submits one batch of one payload per item.
  void probe(std::span<const ProbeItem> items, std::int64_t step, const ProbeRequest& request);

  // Rows whose largest element or norm is beyond this are flagged, from now on; infinity: none.
  void set_limit(double limit) { limit_.store(limit, std::memory_order_relaxed); }

  // Closes the open batch and submits it; an empty batch is not submitted.
  void seal(Moment moment);
  // The same for a thread that must not wait for another seal; false if one was under way.
  bool try_seal(Moment moment);

  // The number of the batch that is sealed next.
  std::uint64_t next_batch();

  std::int64_t rows_produced() const { return produced_.load(std::memory_order_relaxed); }

 private:
  void seal_locked(Moment moment);
  RecordBatch stamp(RecordBatch&& batch, Moment moment);
  Address address_of(SeriesId series) const;
  Row row_of(SeriesId series, DType dtype, std::span<const std::int64_t> sizes,
             const Address& address, std::uint32_t flags);
  // kNonFinite, kMasked, which may have kFirstMasked beside it, or 0.
  std::uint32_t non_finite_flag(const Row& row);
  void judge(Row& row);
  void add(Row& row);
  template <typename Beside>
  void add(Row& row, const Beside& beside);
  // After `row` was appended.
  void added(const Row& row);
  // A late row whose values have come, for the recorder alone.
  void note_late(const Row& row);
  bool has_sketch(SeriesId series) const;
  // To the row of a sweep that was added last.
  void add_check(DeviceSweep& sweep, const TensorView& tensor) const;
  // Measures; with a check where one is taken of the series.
  void add_checked(Row& row, const TensorView& tensor, double scale);

  const CollectorOptions options_;
  const Submit submit_;
  const LateReady late_ready_;
  SeriesRegistry series_{options_.max_series};
  ScalarNames scalar_names_{options_.max_scalars};
  OpenBatch open_;
  Windows windows_;
  std::mutex seal_mutex_;  // keeps batches in the order of their seals
  std::uint64_t batches_ = 0;
  std::atomic<std::int64_t> produced_{0};
  std::atomic<bool> seen_non_finite_{false};
  std::atomic<double> limit_{std::numeric_limits<double>::infinity()};

  FlightRecorder* recorder_ = nullptr;

  DeviceRows device_{[this](Row& row) {
    judge(row);
    note_late(row);
  }};

  class Ticket;
  std::mutex late_mutex_;
  std::vector<Row> late_rows_;
  std::map<std::int64_t, std::shared_ptr<Ticket>> tickets_;
  std::int64_t next_ticket_ = 1;
};

// Of every row, in two files: inline.
inline Address Collector::address_of(SeriesId series) const {
  series_.require(series);
  const int optimizer = series_.at(series).optimizer;
  return {windows_.window(optimizer), windows_.accum(optimizer), 0};
}

inline Row Collector::row_of(SeriesId series, DType dtype, std::span<const std::int64_t> sizes,
                             const Address& address, std::uint32_t flags) {
  series_.require(series);
  Row row;
  row.key.series = series_.with_dtype(series, dtype);
  row.key.flags = flags;
  row.key.window = address.window;
  row.key.accum = address.accum;
  row.key.call = address.call;
  row.shape = series_.number_of(row.key.series, sizes);
  return row;
}

inline std::uint32_t Collector::non_finite_flag(const Row& row) {
  const RowState& state = row.state;
  const std::uint32_t mask = series_.mask_flags(row.key.series, state, row.key.window);
  return state.non_finite() && mask == 0 ? flag::kNonFinite : mask;
}

}  // namespace trainmon
