// Rows of series beyond their limit: what such a row was of is not known, so they are counted and
// leave a gap.
#include <algorithm>
#include <limits>

#include "base/log.h"
#include "pipe/pipe.h"

namespace trainmon {
namespace {

// Takes out rows, checks, samples and payloads of the series, adds the gap, and says how many rows
// there were. Throws std::bad_alloc with the batch as it was.
std::int64_t drop_series(RecordBatch& batch, SeriesId series) {
  const auto is_of_it = [series](const auto& one) { return one.key.series == series; };
  Gap gap{kMaxSeries, 0, std::numeric_limits<std::uint64_t>::max(), 0};
  const auto count = [&](const auto& list) {
    for (const auto& one : list) {
      if (!is_of_it(one)) continue;
      ++gap.rows;
      gap.first_seq = std::min(gap.first_seq, one.key.seq);
      gap.last_seq = std::max(gap.last_seq, one.key.seq);
    }
  };
  count(batch.rows);
  count(batch.payloads);
  if (gap.rows == 0) return 0;
  add_gap(batch.gaps, gap);
  const auto belongs_to_it = [&](const auto& beside) {
    const auto row = std::ranges::lower_bound(batch.rows, beside.seq, {},
                                              [](const Row& one) { return one.key.seq; });
    return row != batch.rows.end() && row->key.seq == beside.seq && is_of_it(*row);
  };
  std::erase_if(batch.checks, belongs_to_it);
  std::erase_if(batch.samples, belongs_to_it);
  std::erase_if(batch.rows, is_of_it);
  std::erase_if(batch.payloads, is_of_it);
  return gap.rows;
}

}  // namespace

void Pipe::drop_overflow(RecordBatch& batch) {
  if (!options_.overflow_series || series_.size() <= *options_.overflow_series) return;
  const std::int64_t rows = drop_series(batch, *options_.overflow_series);
  if (rows == 0 || beyond_series_.fetch_add(rows) > 0) return;
  log_line("more series than max_series = " + std::to_string(*options_.overflow_series) +
           " allows: rows of further ones are counted in health.json as dropped, and not recorded");
}

}  // namespace trainmon
