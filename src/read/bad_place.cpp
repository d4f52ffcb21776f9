#include "read/bad_place.h"

#include <string>

namespace trainmon {

bool is_bad(const ReadRow& row) {
  return is_bad(row.flags, row.state);
}

namespace {

BadPlace place_with_scale(const RunRows& run, const RowPlace& row, double loss_scale,
                          const Series& series) {
  Outcome outcome;
  outcome.loss_scale = loss_scale;
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

}  // namespace

BadPlace place_of(const RunRows& run, const ReadRow& row, const Series& series) {
  return place_with_scale(run, row, row.loss_scale, series);
}

BadPlace place_of(const RunRows& run, const RowPlace& row, const Series& series) {
  return place_with_scale(run, row, 1.0, series);
}

std::string place_text(const ReadRow& row, const Series& series) {
  std::string text = "step " + std::to_string(row.step) + ", rank " + std::to_string(row.rank) +
                     ", " + series.kind + " " + (series.name.empty() ? "(root)" : series.name);
  return series.element.empty() ? text : text + " " + series.element;
}

}  // namespace trainmon
