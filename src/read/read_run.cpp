// A run as rows in memory, sorted.
#include <algorithm>
#include <tuple>

#include "base/made_ahead.h"
#include "base/parallel.h"
#include "read/merge_rows.h"
#include "read/run_stream.h"

namespace trainmon {
namespace {

struct Collected {
  std::vector<ReadRow> rows;
  std::vector<ReadPayload> payloads;
  std::vector<Damage> damage;
};

template <typename T>
void append(std::vector<T>& into, std::vector<T>& from) {
  if (into.capacity() == 0) {
    into.swap(from);
  } else {
    std::move(from.begin(), from.end(), std::back_inserter(into));
  }
  from = std::vector<T>();
}

template <typename T, typename Key>
void sort_unless_sorted(std::vector<T>& list, const Key& key) {
  const auto before = [&](const T& a, const T& b) { return key(a) < key(b); };
  if (!std::is_sorted(list.begin(), list.end(), before)) {
    std::sort(list.begin(), list.end(), before);
  }
}

Collected collect(const RunStream& stream, const ReadOptions& options, std::size_t piece) {
  const bool needs_all = options.merged || !options.stats;  // merging compares whole states
  const Columns columns = needs_all ? Columns::all() : columns_of(*options.stats);
  Collected here;
  stream.read(
      stream.pieces()[piece],
      {[&](const ReadRow& row) {
         if (!options.only_bad || is_bad(row)) here.rows.push_back(row);
       },
       [&](ReadPayload&& payload) { here.payloads.push_back(std::move(payload)); }, columns},
      here.damage);
  here.rows.shrink_to_fit();
  return here;
}

// Copies of ranks are dropped as they come, for what is left is much less.
RunRows collect_merged(RunStream& stream, const ReadOptions& options) {
  RankMerger merger(stream.facts().series, stream.facts().shapes);
  RowsToMerge to_merge(merger);
  Collected all;
  MadeAhead<Collected> made(stream.pieces().size(), threads_with_pieces(options.threads),
                            [&](std::size_t i) { return collect(stream, options, i); });
  while (std::optional<Collected> here = made.next()) {
    for (const ReadRow& row : here->rows) to_merge.add(row);
    append(all.payloads, here->payloads);
    append(all.damage, here->damage);
  }
  RunRows result = stream.take_facts();
  append(result.payloads, all.payloads);
  append(result.damage, all.damage);
  std::vector<ReadRow> rows;
  to_merge.take(rows);
  merger.merge(rows, result.rows);
  result.series = merger.take_series();
  return result;
}

RunRows collect_all(RunStream& stream, const ReadOptions& options) {
  std::vector<Collected> collected(stream.pieces().size());
  for_each_parallel(collected.size(), useful_threads(options.threads),
                    [&](std::size_t i) { collected[i] = collect(stream, options, i); });
  RunRows result = stream.take_facts();
  std::size_t rows = 0;
  for (const Collected& here : collected) rows += here.rows.size();
  result.rows.reserve(rows);
  for (Collected& here : collected) {
    append(result.rows, here.rows);
    append(result.payloads, here.payloads);
    append(result.damage, here.damage);
  }
  return result;
}

}  // namespace

RunRows read_run(const std::filesystem::path& run, const ReadOptions& options) {
  RunStream stream(run, options);
  RunRows result = options.merged ? collect_merged(stream, options) : collect_all(stream, options);
  sort_unless_sorted(result.rows, [](const ReadRow& r) {
    return std::tie(r.restart, r.step, r.attempt, r.rank, r.seq);
  });
  sort_unless_sorted(result.payloads, [](const ReadPayload& p) {
    return std::tie(p.restart, p.step, p.attempt, p.rank, p.payload.key.seq);
  });
  return result;
}

}  // namespace trainmon
