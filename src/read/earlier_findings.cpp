// Of rows the alerts are enough: every series that went wrong has one, with the key of its first
// bad row.
#include "read/earlier_findings.h"

#include <algorithm>
#include <cmath>

#include "read/bad_place.h"
#include "read/log_index.h"

namespace trainmon {

void EarlierFindings::add(int rank, int restart, const RecordBatch& batch,
                          const std::map<SeriesId, Series>& series, const Timeline& timeline,
                          int clock) {
  for (const Alert& alert : batch.alerts) {
    if (alert.rule != "non_finite") continue;
    const Series& of_alert = series.at(alert.key.series);
    const Outcome outcome = timeline.at(of_alert.optimizer, alert.key.window);
    keep(bad_place(of_alert.kind, alert.key.accum, alert.key.seq, outcome), rank, restart,
         of_alert);
  }
  for (const Scalar& scalar : batch.scalars) {
    if (!is_loss(scalar.name) || std::isfinite(scalar.value)) continue;
    Series logged;
    logged.kind = kLogged;
    logged.name = scalar.name;
    keep(bad_place(kLogged, 0, 0, timeline.at(clock, scalar.window)), rank, restart, logged);
  }
}

void EarlierFindings::add(const RankDirectory& place, const RunFacts& facts,
                          const LogContents& log) {
  Timeline timeline = log.outcomes;
  timeline.set_start_steps(facts.start_steps);
  for (const RecordBatch& batch : log.batches) {
    add(place.rank, place.restart, batch, log.series, timeline, facts.clock);
  }
}

void EarlierFindings::keep(BadPlace place, int rank, int restart, const Series& series) {
  place.rank = rank;
  const auto [known, is_new] = first_.try_emplace(restart);
  if (!is_new && !(place < known->second.place)) return;
  ReadRow row;
  row.step = place.step;
  row.rank = rank;
  known->second = {place, place_text(row, series)};
}

std::vector<std::string> EarlierFindings::sentences(int newest_restart) const {
  std::vector<std::string> sentences;
  for (const auto& [restart, first] : first_) {
    if (restart >= newest_restart) continue;
    sentences.push_back("restart " + std::to_string(restart) +
                        " found a NaN or an infinity: first at " + first.text +
                        "; `trainmon first-bad RUN` looks at all restarts");
  }
  return sentences;
}

std::vector<std::string> earlier_findings(const std::vector<RankDirectory>& directories,
                                          const RowFilter& filter) {
  EarlierFindings earlier;
  Allowance allowance;
  int newest = 0;
  for (const RankDirectory& place : directories) newest = std::max(newest, place.restart);
  for (const RankDirectory& place : directories) {
    if (place.error || place.restart == newest || !filter.takes_rank(place.rank)) continue;
    std::vector<Damage> said_elsewhere;
    const LogIndex log(place.path, place.rank, place.restart, allowance);
    earlier.add(place, read_run_json(place, said_elsewhere), log.contents());
  }
  return earlier.sentences(newest);
}

}  // namespace trainmon
