// What a sink is still told of batches that it could not write.
#pragma once

#include <cstdint>
#include <string>

#include "trainmon/record.h"

namespace trainmon {

// Their rows are gone. That they are, what became of their windows, logged and declared values and
// what rules found in them go along with the next batch. Bounded. For one thread.
class Owed {
 public:
  bool empty() const { return records_.empty(); }
  // Rows become a gap with this reason. How many logged values there was no room for.
  std::int64_t add(const RecordBatch& batch, const char* reason);
  // The last one; empty where nothing is owed.
  const std::string& reason() const { return reason_; }
  // Logged values among them.
  std::int64_t scalars() const { return static_cast<std::int64_t>(records_.scalars.size()); }
  // `batch` with these records before its own.
  RecordBatch before(const RecordBatch& batch) const;
  // A batch of the stop, without records: none follows that would bring them along.
  RecordBatch last() const;

 private:
  RecordBatch records_;
  std::string reason_;
};

}  // namespace trainmon
