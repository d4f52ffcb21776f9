// The hot path: one measurement, one append. Everything else happens at a seal.
#include "collect/collector.h"

#include <chrono>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "base/parallel.h"
#include "model/kinds.h"
#include "model/probe_payload.h"
#include "stats/check.h"
#include "stats/divide.h"
#include "stats/entropy.h"
#include "stats/layout.h"
#include "stats/sample.h"
#include "stats/update.h"

namespace trainmon {

Collector::Collector(CollectorOptions options, Submit submit, LateReady late_ready)
    : options_(options),
      submit_(std::move(submit)),
      late_ready_(std::move(late_ready)),
      windows_(options.schedule, [this](const Outcome& outcome) {
        if (recorder_ != nullptr) recorder_->outcome(outcome);
        open_.append(outcome);
      }) {}

void Collector::note_stage(FlightStage stage, int optimizer) {
  if (recorder_ == nullptr) return;
  recorder_->stage(stage, optimizer, windows_.window(optimizer), windows_.step(optimizer));
}

void Collector::note_collective(const CollectiveCall& call) {
  if (recorder_ != nullptr) recorder_->collective(call, windows_.step(options_.clock));
}

void Collector::observe(SeriesId series, const TensorView& tensor, std::uint32_t flags) {
  observe_at(series, tensor, address_of(series), flags);
}

// The flags that depend on the values.
void Collector::judge(Row& row) {
  const std::uint32_t non_finite = non_finite_flag(row);
  row.key.flags |= non_finite;
  if (non_finite == flag::kNonFinite) {
    windows_.note_non_finite(series_.at(row.key.series).optimizer, row.key.window);
  }
  // Every other statistic with a size is bounded by these two; the norm of a mask is infinite.
  const double limit = limit_.load(std::memory_order_relaxed);
  if (!std::isfinite(limit)) return;
  const bool has_norm = (non_finite & flag::kMasked) == 0;
  if (row.state.absmax > limit || (has_norm && derive(Stat::norm, row.state) > limit)) {
    row.key.flags |= flag::kOverLimit;
  }
}

void Collector::observe_at(SeriesId series, const TensorView& tensor, const Address& address,
                           std::uint32_t flags, Reading* keep) {
  Row row = row_of(series, tensor.dtype, sizes_of(tensor), address, flags);
  if (options_.checks) {
    add_checked(row, tensor, 1.0);
  } else {
    row.state = measure(tensor, options_.eps, options_.threads);
    add(row);
  }
  if (keep != nullptr) keep->state = row.state;
}

void Collector::observe_again(SeriesId series, const TensorView& tensor, const Address& address,
                              std::uint32_t flags, const Reading& reading) {
  Row row = row_of(series, tensor.dtype, sizes_of(tensor), address, flags);
  if (reading.launch != nullptr) {
    row.key.seq = open_.take_seq();
    return device_.repeat(row, reading);
  }
  row.state = reading.state.value();
  add(row);
}

void Collector::observe_sample(SeriesId series, const TensorView& tensor, const Address& address,
                               int n, std::uint32_t flags, Reading* keep) {
  if (n == 0) return observe_at(series, tensor, address, flags, keep);
  Row row = row_of(series, tensor.dtype, sizes_of(tensor), address, flags);
  RowSample sample;
  const std::uint64_t seed =
      sample_seed({options_.rank, row.key.series, address.window, address.accum, address.call});
  const auto estimate = measure_sample(tensor, n, seed, sample, options_.eps);
  if (!estimate) {
    row.state = measure(tensor, options_.eps, options_.threads);
    return add(row);
  }
  row.state = *estimate;
  row.key.flags |= flag::kSampled;
  add(row, sample);
}

void Collector::observe_scaled(SeriesId series, const TensorView& tensor, double scale,
                               std::uint32_t flags) {
  Row row = row_of(series, tensor.dtype, sizes_of(tensor), address_of(series), flags);
  if (options_.checks) return add_checked(row, tensor, scale);
  row.state = measure(tensor, options_.eps * scale, options_.threads);
  divide(row.state, scale);
  add(row);
}

// A check has another look at each element of an expanded view, where its state needs one.
std::optional<std::int64_t> Collector::checked_from(SeriesId series,
                                                    const TensorView& tensor) const {
  if (!options_.checks || is_mostly_repeated(tensor)) return std::nullopt;
  series_.require(series);
  return series_.check_from(series, element_count(tensor));
}

// Of gradients only the sum of squares is known: nothing is held against a sketch of theirs. Nor is
// anything held against that of an input or a buffer.
bool Collector::has_sketch(SeriesId series) const {
  const std::string& kind = series_.at(series).kind;
  return kind != "exp_avg_sq" && kind != kind::kInput && kind != kind::kBuffer;
}

void Collector::add_checked(Row& row, const TensorView& tensor, double scale) {
  const double eps = options_.eps * scale;
  const auto first = checked_from(row.key.series, tensor);
  Check check;
  row.state = first ? measure(tensor, *first, check, eps, options_.threads)
                    : measure(tensor, eps, options_.threads);
  if (scale != 1.0) divide(row.state, scale);
  if (!first) return add(row);
  RowCheck taken = row_check(check, scale);
  taken.has_sketch = has_sketch(row.key.series);
  if (!taken.has_sketch) taken.sketch = {};
  add(row, taken);
}

void Collector::observe_input(SeriesId series, SeriesId entropy, const TensorView& tensor,
                              const Address& address) {
  Row row = row_of(series, tensor.dtype, sizes_of(tensor), address, 0);
  Check check;
  const bool is_checked = checked_from(row.key.series, tensor).has_value();
  row.state = is_checked ? measure(tensor, 0, check, options_.eps, options_.threads)
                         : measure(tensor, options_.eps, options_.threads);
  if (row.state.neg_infs > 0 && row.state.nans == 0 && row.state.pos_infs == 0) return;
  RowCheck taken;
  taken.fingerprint = check.fingerprint;
  is_checked ? add(row, taken) : add(row);
  const std::optional<double> bits = token_entropy(tensor);
  if (!bits) return;
  observe_at(entropy, {.data = &*bits, .dtype = DType::float64}, address, 0);
}

void Collector::observe_update(SeriesId series, const UpdateFormula& formula) {
  const TensorView& x = formula.x;
  Row row = row_of(series, dtype_of(formula), sizes_of(x), address_of(series), 0);
  const auto first = series_.check_from(row.key.series, element_count(x));
  Check check;
  row.state = measure(formula, first.value_or(0), check, options_.eps, options_.threads);
  if (row.state.non_finite()) return;
  if (!options_.checks || !first) return add(row);
  add(row, row_check(check));
}

void Collector::add(Row& row) {
  judge(row);
  row.key.seq = open_.append(row);
  added(row);
}

template <typename Beside>
void Collector::add(Row& row, const Beside& beside) {
  judge(row);
  row.key.seq = open_.append(row, beside);
  added(row);
}

void Collector::added(const Row& row) {
  if (recorder_ != nullptr) {
    const int optimizer = series_.at(row.key.series).optimizer;
    const bool is_open = row.key.window == windows_.window(optimizer);
    recorder_->row(row, is_open ? windows_.step(optimizer) : -1);
  }
  produced_.fetch_add(1, std::memory_order_relaxed);
  // The first one must be on its way to the disk before anything else can happen.
  const bool is_bad = (row.key.flags & flag::kNonFinite) != 0;
  if (is_bad && !seen_non_finite_.exchange(true)) seal(Moment::alert);
}

void Collector::add_scalar(std::string_view name, double value,
                           std::optional<std::int64_t> window) {
  Scalar scalar;
  scalar.name = bounded_name(name);
  if (!scalar_names_.takes(scalar.name)) return;
  scalar.window = window.value_or(windows_.window(options_.clock));
  scalar.value = value;
  if (recorder_ != nullptr) recorder_->scalar(scalar.name, scalar.window, value);
  open_.append(std::move(scalar));
}

void Collector::declare(Declared declared) {
  declared.window = windows_.window(declared.optimizer);
  open_.append(std::move(declared));
}

void Collector::add_payload(Payload payload) {
  const Address address = address_of(payload.key.series);
  payload.key.window = address.window;
  payload.key.accum = address.accum;
  add_payload_at(std::move(payload));
}

void Collector::add_payload_at(Payload payload) {
  series_.require(payload.key.series);
  open_.append(std::move(payload));
  produced_.fetch_add(1, std::memory_order_relaxed);
}

void Collector::probe(std::span<const ProbeItem> items, std::int64_t step,
                      const ProbeRequest& request) {
  RecordBatch batch;
  batch.payloads.resize(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    batch.payloads[i].type = PayloadType::probe;
    RowKey& key = batch.payloads[i].key;
    series_.require(items[i].series);
    key.series = series_.with_dtype(items[i].series, items[i].tensor.dtype);
    key.window = step;
    key.seq = open_.take_seq();
  }
  // An MD5 is one thread's work: then the tensors are shared out, else the parts of each.
  const bool is_serial = request.digest == Digest::md5;
  const int threads = is_serial ? 1 : options_.threads;
  for_each_parallel(
      items.size(), is_serial ? static_cast<unsigned>(options_.threads) : 1, [&](std::size_t i) {
        const TensorView& tensor = items[i].tensor;
        batch.payloads[i].bytes = probe_payload(sizes_of(tensor), static_cast<int>(request.signs),
                                                trainmon::probe(tensor, request, threads));
      });
  if (batch.empty()) return;
  const std::lock_guard order(seal_mutex_);
  produced_.fetch_add(batch.row_count(), std::memory_order_relaxed);
  submit_(stamp(std::move(batch), Moment::before_step));
}

void Collector::seal(Moment moment) {
  const std::lock_guard order(seal_mutex_);
  seal_locked(moment);
}

std::uint64_t Collector::next_batch() {
  const std::lock_guard lock(seal_mutex_);
  return batches_ + 1;
}

bool Collector::try_seal(Moment moment) {
  const std::unique_lock order(seal_mutex_, std::try_to_lock);
  if (!order.owns_lock()) return false;
  seal_locked(moment);
  return true;
}

void Collector::seal_locked(Moment moment) {
  if (RecordBatch batch = device_.seal(); !batch.empty()) {
    produced_.fetch_add(batch.row_count(), std::memory_order_relaxed);
    submit_(stamp(std::move(batch), moment));
  }
  RecordBatch batch = open_.take();
  if (batch.empty()) return;
  submit_(stamp(std::move(batch), moment));
}

RecordBatch Collector::stamp(RecordBatch&& batch, Moment moment) {
  batch.number = ++batches_;
  batch.moment = moment;
  batch.eps = options_.eps;
  batch.time_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                      std::chrono::system_clock::now().time_since_epoch())
                      .count();
  return std::move(batch);
}

}  // namespace trainmon
