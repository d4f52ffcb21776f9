#include "sources/rank_record.h"

#include <iterator>
#include <utility>

#include "base/text.h"
#include "read/completeness.h"

namespace trainmon {

RankRecord read_rank_record(const std::vector<RankDirectory>& places, std::size_t index,
                            std::string_view sink, std::vector<std::string>& incomplete) {
  RankRecord record;
  record.facts = read_run_json(places[index], record.damage);
  record.stored = read_health_json(places[index], record.damage);
  Completeness state = completeness_of(places[index], record.facts, record.stored, nullptr,
                                       is_newest(places, index), sink);
  std::move(state.incomplete.begin(), state.incomplete.end(), std::back_inserter(incomplete));
  return record;
}

std::int64_t rows_claimed(const RankRecord& record, std::string_view sink) {
  if (!record.stored || !record.stored->closed) return 0;
  for (const SinkHealth& one : record.stored->health.sinks) {
    if (one.name == sink) return one.rows_written;
  }
  return 0;
}

void hold_against_health(const std::filesystem::path& place, std::string_view what,
                         std::int64_t claimed, std::int64_t found, RowAccount& account) {
  const std::int64_t lost = claimed - found;
  if (lost <= 0) return;
  account.read(lost);
  account.reject({place, 0, lost,
                  "health.json says " + grouped(claimed) + " rows were written, " +
                      std::string(what) + " " + grouped(found)});
}

void add_gaps(const std::vector<ReadGap>& gaps, std::vector<std::string>& incomplete) {
  for (const ReadGap& one : gaps) {
    incomplete.push_back("rank " + std::to_string(one.rank) + ": " + grouped(one.gap.rows) +
                         " rows were dropped (" + printable(one.gap.reason) + ")");
  }
}

}  // namespace trainmon
