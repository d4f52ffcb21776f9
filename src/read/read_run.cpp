// A run as rows in memory, sorted.
#include <algorithm>
#include <tuple>

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
  if (into.empty()) {
    into.swap(from);
  } else {
    std::move(from.begin(), from.end(), std::back_inserter(into));
  }
  from = {};
}

template <typename T, typename Key>
void sort_unless_sorted(std::vector<T>& list, const Key& key) {
  const auto before = [&](const T& a, const T& b) { return key(a) < key(b); };
  if (!std::is_sorted(list.begin(), list.end(), before)) {
    std::sort(list.begin(), list.end(), before);
  }
}

}  // namespace

RunRows read_run(const std::filesystem::path& run, const ReadOptions& options) {
  RunStream stream(run, options);
  const std::vector<RunStream::Piece>& pieces = stream.pieces();
  const bool needs_all = options.merged || !options.stats;  // merging compares whole states
  const Columns columns = needs_all ? Columns::all() : columns_of(*options.stats);
  std::vector<Collected> collected(pieces.size());
  for_each_parallel(pieces.size(), useful_threads(options.threads), [&](std::size_t i) {
    Collected& here = collected[i];
    stream.read(
        pieces[i],
        {[&](const ReadRow& row) {
           if (!options.only_bad || is_bad(row)) here.rows.push_back(row);
         },
         [&](ReadPayload&& payload) { here.payloads.push_back(std::move(payload)); }, columns},
        here.damage);
  });
  RunRows result = stream.take_facts();
  for (Collected& here : collected) {
    append(result.rows, here.rows);
    append(result.payloads, here.payloads);
    append(result.damage, here.damage);
  }
  sort_unless_sorted(result.rows, [](const ReadRow& r) {
    return std::tie(r.restart, r.step, r.attempt, r.rank, r.seq);
  });
  sort_unless_sorted(result.payloads, [](const ReadPayload& p) {
    return std::tie(p.restart, p.step, p.attempt, p.rank, p.payload.key.seq);
  });
  if (options.merged) merge_ranks(result);
  return result;
}

}  // namespace trainmon
