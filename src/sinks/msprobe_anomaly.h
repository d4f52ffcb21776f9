// Alerts as msprobe writes and words them: tags, messages, and the sink of anomaly.json.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "trainmon/sink.h"

namespace trainmon {

struct MsprobeAnomalyOptions {
  std::filesystem::path base;  // {base}/anomaly_detected/rank{rank}/anomaly.json
  int rank = 0;
  int pp_stage = 0;
  std::vector<int> group_mates;
  std::int64_t micro_steps = 0;       // backwards per step; 0: not known
  bool micro_gradients = false;       // grad_unreduced is watched per micro step
  std::size_t most_entries = 100000;  // what is found beyond is counted in one last entry
};

// The micro step of a row: its accum, modulo the micro steps of a step where those are known.
std::int64_t msprobe_micro_step(const RowKey& key, const MsprobeAnomalyOptions& options);

// "{chunk}:{name}[.{element}][:{micro}]/rank{rank}/{task}". The task follows from the kind; the
// micro step is in the tags of kinds that have one per micro step.
std::string msprobe_tag(const Series& series, const RowKey& key,
                        const MsprobeAnomalyOptions& options);

// The message is "Rule R reports anomaly signal in ('TAG', 'STAT') at step S, current value V,
// history mean M.". Without a statistic it is "Rule R reports 'TAG' at step S: MESSAGE".
std::string msprobe_alert_message(const Alert& alert, const std::string& tag);

// Alerts of rules of statistics (Alert::stat not empty), as entries of one JSON object. The file
// is replaced as a whole, so that a reader finds all of the old or all of the new. One of an
// earlier start is kept beside it as anomaly.<time>.json. Rewriting takes at most a tenth of the
// time. With very many entries the newest reach the file some seconds later, or at close().
std::unique_ptr<Sink> make_msprobe_anomaly_sink(MsprobeAnomalyOptions options);

}  // namespace trainmon
