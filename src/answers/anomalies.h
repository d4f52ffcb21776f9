// Alerts ranked as a fault passes through a step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "trainmon/read.h"

namespace trainmon {

// One alert where anomalies are ranked: an entry of msprobe's anomaly.json, or an alert of a run.
struct Anomaly {
  std::string key;  // of the entry; unique in its file
  std::int64_t rank = 0;
  std::int64_t step = 0;
  std::int64_t micro_step = 0;
  std::int64_t pp_stage = 0;
  std::int64_t vpp_stage = 0;
  std::int64_t call_id = 0;  // order of execution within the step on its rank
  std::string tag_name;      // "0:fc.weight/rank0/post_grad"; its end says when in a step
  std::string message;
  std::vector<std::int64_t> group_mates;
};
struct AnomalyList {
  std::vector<Anomaly> entries;  // in the order of sort_anomalies() that belongs to their source
  std::int64_t files = 0;        // anomaly.json files, or ranks of a run
  std::vector<Damage> damage;    // files and entries that could not be used
  MissingRanks missing;          // of a run
  std::vector<std::string> incomplete;  // of a run: why its record is not complete, as RunRows
};
// Reads DIRECTORY/*/anomaly.json or, where there is none, the alerts of the run DIRECTORY. Only
// the given steps; empty means all. Throws std::runtime_error when it is neither.
AnomalyList read_anomalies(const std::filesystem::path& directory,
                           const std::set<std::int64_t>& steps = {});
// The order is by step, micro step, stage, pipeline stage, then call. The stages are as a fault
// passes through a step. The first is what modules compute in forward (actv, qkt, sr, router_*).
// Gradients (actv_grad, pre_grad, acc_grad, post_grad) follow, then all the rest (optimizer
// state, weights). The pipeline stage is the virtual and then the real one, ascending in forward
// and descending elsewhere. Equal ones are by rank and key: no order depends on the input's. The
// order `msprobe` is that of anomaly.json files: its forward is actv alone, its optimizer exp_avg
// and exp_avg_sq. Whatever it does not know comes first, with stages descending.
enum class AnomalyOrder : std::uint8_t { run, msprobe };
void sort_anomalies(std::vector<Anomaly>& anomalies, AnomalyOrder order = AnomalyOrder::run);
// Replaces `file` by one JSON object of these entries, in order. Throws SinkError.
void write_anomalies(const std::filesystem::path& file, const std::vector<Anomaly>& anomalies);

}  // namespace trainmon
