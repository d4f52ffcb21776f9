#include "read/samples.h"

#include <algorithm>
#include <tuple>

#include "base/parallel.h"

namespace trainmon {

std::vector<SampledRow> read_samples(const RunStream& stream, unsigned threads,
                                     std::vector<Damage>& damage) {
  struct Found {
    std::vector<SampledRow> rows;
    std::vector<Damage> damage;
  };
  const std::vector<RunStream::Piece>& pieces = stream.pieces();
  std::vector<Found> found(pieces.size());
  for_each_parallel(pieces.size(), useful_threads(threads), [&](std::size_t i) {
    RunStream::Take take;
    take.row = [](const ReadRow&) {};
    take.sampled = [&](const ReadRow& row, const RowSample& sample) {
      found[i].rows.push_back({row, sample});
    };
    stream.read(pieces[i], take, found[i].damage);
  });
  std::vector<SampledRow> all;
  for (Found& one : found) {
    all.insert(all.end(), one.rows.begin(), one.rows.end());
    damage.insert(damage.end(), one.damage.begin(), one.damage.end());
  }
  std::ranges::stable_sort(all, {}, [](const SampledRow& one) {
    const ReadRow& row = one.row;
    return std::tuple(row.restart, row.step, row.attempt, row.rank, row.seq);
  });
  return all;
}

}  // namespace trainmon
