#include "read/bad_place.h"

#include <string>

namespace trainmon {

bool is_bad(const ReadRow& row) {
  return is_bad(row.flags, row.state);
}

BadPlace place_of(const RunRows& run, const RowPlace& row, const Series& series) {
  Outcome outcome;
  outcome.step = row.step;
  outcome.attempt = row.attempt;
  outcome.fate = row.fate;
  BadPlace place = bad_place(series.kind, row.accum, row.seq, outcome);
  // Where only the newest restart of each step is shown it is the only one, whichever that is.
  place.run_through = run.all_restarts ? row.restart : 0;
  place.rank = row.rank;
  place.restart = row.restart;
  return place;
}

std::string place_text(const ReadRow& row, const Series& series) {
  std::string text = "step " + std::to_string(row.step) + ", rank " + std::to_string(row.rank) +
                     ", " + series.kind + " " + (series.name.empty() ? "(root)" : series.name);
  return series.element.empty() ? text : text + " " + series.element;
}

}  // namespace trainmon
