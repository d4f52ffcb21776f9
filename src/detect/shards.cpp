#include "detect/shards.h"

#include <algorithm>

namespace trainmon::detect {
namespace {

// Adds up in float64. What single sketches and their sum are rounded by is at most `added`, and the
// rounding of one.
void add_sketches(const std::vector<const Observation*>& shards, Observation& whole) {
  if (evidence_of_sums(shards) != Evidence::sketches) return;
  Linear sum;
  for (const Observation* shard : shards) sum.add(1.0, shard->linear(Evidence::sketches));
  whole.added = sum.stored;
  for (const double value : sum.values) whole.sketch.push_back(static_cast<float>(value));
}

}  // namespace

std::optional<Gathered> gathered(const std::vector<const Observation*>& shards, double count) {
  std::vector<const Observation*> held;
  std::vector<std::uint64_t> parts;
  Gathered all;
  for (const Observation* shard : shards) {
    if (!shard->is_finite || shard->is_replicated || shard->is_independent) return std::nullopt;
    if (shard->count == 0.0) continue;
    parts.push_back(shard->part);
    held.push_back(shard);
    all.holders.push_back(shard->rank);
    all.whole.count += shard->count;
    all.whole.sum += shard->sum;
    all.whole.sum_sq += shard->sum_sq;
    all.whole.absmax = std::max(all.whole.absmax, shard->absmax);
  }
  if (held.empty() || all.whole.count != count) return std::nullopt;
  std::ranges::sort(parts);
  if (std::ranges::adjacent_find(parts) != parts.end()) return std::nullopt;
  const Observation& first = *held.front();
  const auto has_its_dtype = [&](const Observation* one) { return one->dtype == first.dtype; };
  if (!std::ranges::all_of(held, has_its_dtype)) return std::nullopt;
  all.whole.tensor = first.tensor;
  all.whole.quantity = first.quantity;
  all.whole.rank = first.rank;
  all.whole.dtype = first.dtype;
  all.whole.attempt = first.attempt;
  add_sketches(held, all.whole);
  return all;
}

}  // namespace trainmon::detect
