// Rows whose values follow: of tensors that a device of ours measures, and those that an adapter
// brings.
#include <stdexcept>
#include <utility>

#include "collect/collector.h"

namespace trainmon {

// Values of one late batch: the adapter brings them, the writer thread picks them up.
class Collector::Ticket final : public LateValues {
 public:
  Ticket(Collector& collector, std::size_t rows) : collector_(collector), rows_(rows) {}

  bool ready() const noexcept override { return ready_.load(std::memory_order_acquire); }

  void fill(RecordBatch& batch) noexcept override {
    for (std::size_t i = 0; i < batch.rows.size() && i < states_.size(); ++i) {
      Row& row = batch.rows[i];
      row.state = states_[i];
      row.key.flags |= collector_.non_finite_flag(row);
      collector_.note_late(row);
    }
    // Made before, for nothing may fail here.
    for (std::size_t i = 0; i < checks_.size(); ++i) {
      if (of_row_[i] >= batch.rows.size()) return;
      const RowKey& key = batch.rows[of_row_[i]].key;
      checks_[i].seq = key.seq;
      checks_[i].has_sketch = collector_.has_sketch(key.series);
      if (!checks_[i].has_sketch) checks_[i].sketch = {};
    }
    batch.checks = std::move(checks_);
  }

  bool bring(std::span<const RowState> states, std::span<const std::optional<RowCheck>> checks) {
    if (states.size() != rows_ || ready()) return false;
    if (!checks.empty() && checks.size() != rows_) return false;
    states_.assign(states.begin(), states.end());
    for (std::size_t i = 0; i < checks.size(); ++i) {
      if (!checks[i]) continue;
      checks_.push_back(*checks[i]);
      of_row_.push_back(i);
    }
    ready_.store(true, std::memory_order_release);
    return true;
  }

 private:
  Collector& collector_;
  const std::size_t rows_;
  std::vector<RowState> states_;
  std::vector<RowCheck> checks_;
  std::vector<std::size_t> of_row_;  // of each check
  std::atomic<bool> ready_{false};
};

void Collector::note_late(const Row& row) {
  if (recorder_ == nullptr) return;
  recorder_->row(row, windows_.step_of(series_.at(row.key.series).optimizer, row.key.window));
}

bool Collector::observe_on_device(DeviceSweep& sweep, SeriesId series, const TensorView& tensor,
                                  std::uint32_t flags, const std::optional<Address>& address) {
  series_.require(series);
  if (sweep.rows.empty()) {
    std::string why;
    sweep.device = cuda::CudaDevice::of(tensor.device_index, why);
    if (sweep.device == nullptr) return false;
    sweep.device_index = tensor.device_index;
    sweep.stream = tensor.stream;
  }
  const char* refusal = cuda::describe(tensor, sweep.pieces);
  if (refusal != nullptr) throw std::invalid_argument(refusal);
  const int optimizer = series_.at(series).optimizer;
  sweep.pieces.entries.back().window = static_cast<std::uint16_t>(optimizer);
  if (sweep.rows.empty()) sweep.optimizer = optimizer;
  sweep.rows.push_back(row_of(series, tensor.dtype, sizes_of(tensor),
                              address ? *address : address_of(series), flags));
  if (options_.checks) add_check(sweep, tensor);
  sweep.rows.back().key.seq = open_.take_seq();
  return true;
}

void Collector::add_check(DeviceSweep& sweep, const TensorView& tensor) const {
  const SeriesId series = sweep.rows.back().key.series;
  const auto first = checked_from(series, tensor);
  if (!first) return;
  const std::int32_t place = cuda::add_check(tensor, *first, sweep.pieces);
  if (place == cuda::kNoCheck) return;
  sweep.checks.push_back({sweep.rows.size() - 1, place, has_sketch(series)});
}

std::string Collector::reserve_device(int device, std::int64_t tensors, std::int64_t bytes) {
  std::string why;
  cuda::CudaDevice* found = cuda::CudaDevice::of(device, why);
  if (found != nullptr) found->reserve(static_cast<std::size_t>(tensors), bytes, options_.checks);
  return why;
}

std::string Collector::launch_on_device(DeviceSweep& sweep) {
  return device_.launch(sweep, options_.eps);
}

void Collector::collect_replays() {
  for (Row& row : device_.collect_replays()) {
    open_.append(row);
    produced_.fetch_add(1, std::memory_order_relaxed);
  }
}

void Collector::add_late_row(SeriesId series, DType dtype, std::span<const std::int64_t> sizes,
                             const Address& address, std::uint32_t flags) {
  Row row = row_of(series, dtype, sizes, address, flags);
  const std::lock_guard lock(late_mutex_);
  row.key.seq = open_.take_seq();
  late_rows_.push_back(row);
  produced_.fetch_add(1, std::memory_order_relaxed);
}

std::int64_t Collector::seal_late() {
  const std::lock_guard order(seal_mutex_);
  RecordBatch batch;
  std::int64_t ticket = 0;
  {
    const std::lock_guard lock(late_mutex_);
    if (late_rows_.empty()) return 0;
    auto values = std::make_shared<Ticket>(*this, late_rows_.size());
    tickets_[next_ticket_] = values;  // what may fail comes first: rows taken must be submitted
    ticket = next_ticket_++;
    batch.rows = std::exchange(late_rows_, {});
    batch.late = std::move(values);
  }
  submit_(stamp(std::move(batch), Moment::interval));
  return ticket;
}

bool Collector::fulfil(std::int64_t ticket, std::span<const RowState> states,
                       std::span<const std::optional<RowCheck>> checks) {
  std::shared_ptr<Ticket> values;
  {
    const std::lock_guard lock(late_mutex_);
    const auto found = tickets_.find(ticket);
    if (found == tickets_.end()) return false;
    values = std::move(found->second);
    tickets_.erase(found);
  }
  const bool taken = values->bring(states, checks);
  late_ready_();
  return taken;
}

}  // namespace trainmon
