// Alerts are enough: every series that went wrong has one, with the key of its first bad row.
#include "tools/earlier_findings.h"

namespace trainmon {

void EarlierFindings::add(int rank, int restart, const RecordBatch& batch,
                          const std::map<SeriesId, Series>& series, const Timeline& timeline) {
  for (const Alert& alert : batch.alerts) {
    if (alert.rule != "non_finite") continue;
    const Series& of_alert = series.at(alert.key.series);
    const Outcome outcome = timeline.at(of_alert.optimizer, alert.key.window);
    BadPlace place = bad_place(of_alert.kind, alert.key.accum, alert.key.seq, outcome);
    place.rank = rank;
    const auto [known, is_new] = first_.try_emplace(restart);
    if (!is_new && !(place < known->second.place)) continue;
    ReadRow row;
    row.step = outcome.step;
    row.rank = rank;
    known->second = {place, place_text(row, of_alert)};
  }
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

}  // namespace trainmon
