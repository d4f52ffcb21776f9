// Copies under a lock; the values are in by the time a sink sees a batch.
#include "sinks/memory.h"

#include "trainmon/error.h"

namespace trainmon {

void MemorySink::write(const RecordBatch& batch) {
  RecordBatch copy = batch;
  copy.late.reset();
  const std::size_t bytes = copy.bytes();
  const std::lock_guard lock(mutex_);
  if (bytes > limit_ - bytes_) {
    throw SinkError("memory_limit",
                    "sink memory holds its limit of " + std::to_string(limit_) + " bytes");
  }
  batches_.push_back(std::move(copy));
  bytes_ += bytes;
}

std::vector<RecordBatch> MemorySink::snapshot() const {
  const std::lock_guard lock(mutex_);
  return batches_;
}

}  // namespace trainmon
