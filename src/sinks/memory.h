// The sink `memory`: keeps batches for programs and tests that look at them while running.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "trainmon/sink.h"

namespace trainmon {

class MemorySink : public Sink {
 public:
  // Beyond `limit_bytes` batches are refused (SinkError "memory_limit").
  explicit MemorySink(std::size_t limit_bytes = std::size_t{1} << 30) : limit_(limit_bytes) {}

  std::string_view name() const override { return "memory"; }
  void open(const RunInfo&, const SeriesTable&) override {}
  void write(const RecordBatch& batch) override;
  void flush() override {}
  void close() override {}

  // What was taken so far, in order. Any thread, also after close().
  std::vector<RecordBatch> snapshot() const;

 private:
  const std::size_t limit_;
  mutable std::mutex mutex_;
  std::vector<RecordBatch> batches_;
  std::size_t bytes_ = 0;
};

}  // namespace trainmon
