// Batches and sinks the pipe tests share: a sink that keeps what it gets and can be made to fail.
#pragma once

#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "trainmon/error.h"
#include "trainmon/sink.h"

namespace trainmon::testing {

class Table final : public SeriesTable {
 public:
  explicit Table(std::size_t size) : series_(size) {
    for (std::size_t i = 0; i < size; ++i) {
      series_[i].kind = "grad_reduced";
      series_[i].name = "p" + std::to_string(i);
    }
  }
  const Series& at(SeriesId id) const override { return series_.at(id); }
  std::size_t size() const override { return series_.size(); }

 private:
  std::vector<Series> series_;
};

// Rows first_seq .. first_seq + rows - 1, series cycling over `series`.
inline RecordBatch batch_of(std::uint64_t number, std::uint64_t first_seq, int rows,
                            SeriesId series = 8, bool flagged = false) {
  RecordBatch batch;
  batch.number = number;
  for (int i = 0; i < rows; ++i) {
    Row row;
    row.key.seq = first_seq + static_cast<std::uint64_t>(i);
    row.key.series = static_cast<SeriesId>(row.key.seq % series);
    row.state.count = 1;
    if (flagged) {
      row.key.flags = flag::kNonFinite;
      row.state.nans = 1;
    }
    batch.rows.push_back(row);
  }
  batch.rows.shrink_to_fit();
  return batch;
}

// What the sink has seen; shared so that it outlives the pipe.
struct Seen {
  std::mutex mutex;
  std::vector<RecordBatch> batches;
  std::string fail_with;  // reason; "" works
  bool fail_open = false;
  std::chrono::milliseconds delay{0};
  int flushes = 0;
  int closes = 0;

  std::size_t rows() {
    const std::lock_guard lock(mutex);
    std::size_t total = 0;
    for (const RecordBatch& batch : batches) total += batch.rows.size();
    return total;
  }
};

class RecordingSink final : public Sink {
 public:
  explicit RecordingSink(std::shared_ptr<Seen> seen, std::string name = "recording")
      : seen_(std::move(seen)), name_(std::move(name)) {}
  std::string_view name() const override { return name_; }
  void open(const RunInfo&, const SeriesTable&) override {
    const std::lock_guard lock(seen_->mutex);
    if (seen_->fail_open) throw SinkError("permission", "cannot open");
  }
  void write(const RecordBatch& batch) override {
    std::chrono::milliseconds delay;
    {
      const std::lock_guard lock(seen_->mutex);
      delay = seen_->delay;
    }
    if (delay.count() > 0) std::this_thread::sleep_for(delay);
    const std::lock_guard lock(seen_->mutex);
    if (!seen_->fail_with.empty()) throw SinkError(seen_->fail_with, "told to fail");
    seen_->batches.push_back(batch);
  }
  void flush() override {
    const std::lock_guard lock(seen_->mutex);
    ++seen_->flushes;
  }
  void close() override {
    const std::lock_guard lock(seen_->mutex);
    ++seen_->closes;
  }

 private:
  std::shared_ptr<Seen> seen_;
  std::string name_;
};

}  // namespace trainmon::testing
