// What a sink is still told of batches that it could not write.
#pragma once

#include "trainmon/record.h"

namespace trainmon {

// Their rows are gone. That they are, what became of their windows, declared values and what rules
// found in them go along with the next batch. Bounded. For one thread.
class Owed {
 public:
  bool empty() const { return records_.empty(); }
  // Rows become a gap with this reason.
  void add(const RecordBatch& batch, const char* reason);
  // `batch` with these records before its own.
  RecordBatch before(const RecordBatch& batch) const;
  // A batch of the stop, without records: none follows that would bring them along.
  RecordBatch last() const;

 private:
  RecordBatch records_;
};

}  // namespace trainmon
