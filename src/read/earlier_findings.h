// What restarts before the newest found that is not finite: a newer one hides it from whoever looks
// at its steps.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/timeline.h"
#include "read/bad_place.h"
#include "read/log.h"
#include "read/row_filter.h"
#include "read/run_layout.h"

namespace trainmon {

class EarlierFindings {
 public:
  // The alerts and losses of one batch; all of a rank's windows must be in `timeline`. `clock` is
  // the optimizer that scalars follow.
  void add(int rank, int restart, const RecordBatch& batch,
           const std::map<SeriesId, Series>& series, const Timeline& timeline, int clock);
  // Those of a whole log.
  void add(const RankDirectory& place, const RunFacts& facts, const LogContents& log);
  // "restart 0 found a NaN or an infinity: first at step 5, rank 0, grad_reduced w; ...", by
  // restart.
  std::vector<std::string> sentences(int newest_restart) const;

 private:
  void keep(BadPlace place, int rank, int restart, const Series& series);

  struct First {
    BadPlace place;
    std::string text;
  };
  std::map<int, First> first_;  // by restart
};

// Those of the ranks selected, from logs that nobody has open; of what is damaged, what can be
// read.
std::vector<std::string> earlier_findings(const std::vector<RankDirectory>& directories,
                                          const RowFilter& filter);

}  // namespace trainmon
