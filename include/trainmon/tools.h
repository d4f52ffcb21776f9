// Offline: read runs back, find the first bad row, rank tensors, account for a run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "trainmon/monitor.h"
#include "trainmon/record.h"

namespace trainmon {

// Damage met while reading, never silent: bytes that could not be used and where.
struct Damage {
  std::filesystem::path file;
  std::int64_t offset = 0;
  std::string what;
};

// All that the log of one rank and restart holds.
struct LogContents {
  std::map<SeriesId, Series> series;                        // every series, wanted or not
  std::vector<RecordBatch> batches;                         // by number, of wanted series only
  std::set<std::pair<std::int32_t, std::int64_t>> windows;  // (optimizer, window) of every row
  std::int64_t rows = 0;                                    // of all series, payloads among them
  std::int64_t payloads = 0;
  std::int64_t files = 0;
  std::int64_t bytes = 0;
  std::int64_t torn_tails = 0;  // unfinished last writes: those of a killed or living run
  std::vector<Damage> damage;
};
// Reads the segments (docs/formats.md) in `directory`, RUN/rank_00000/restart_0000, also while they
// are being written. `rank` and `restart` say whose they must be; others' segments are damage.
// Whatever the bytes are: no exception but std::bad_alloc, no wrong row, no silent loss.
LogContents read_log(const std::filesystem::path& directory, int rank, int restart,
                     const std::function<bool(const Series&)>& wanted = {});

// Which rows to read. Empty lists mean all.
struct ReadOptions {
  std::vector<std::string> kinds;    // kinds or groups: grads weights moments activations
  std::vector<std::string> include;  // name patterns of config.h
  std::vector<std::string> exclude;
  std::vector<int> ranks;
  std::optional<std::int64_t> first_step;  // inclusive
  std::optional<std::int64_t> last_step;   // inclusive
  bool all_restarts = false;               // false: the newest restart of a step that exists twice
  bool merged = false;    // union rows of all ranks merged, identical rows taken once
  bool only_bad = false;  // of the rows, those with a NaN or an infinity
};

// One row as readers see it: key joined with series and outcome.
struct ReadRow {
  std::int32_t restart = 0;
  std::int32_t rank = 0;     // -1 for rows merged over ranks
  std::uint32_t series = 0;  // index into RunRows::series (unified over ranks)
  std::int64_t window = 0;
  std::int64_t step = 0;
  std::int32_t attempt = 0;
  Fate fate = Fate::unknown;
  double loss_scale = 1.0;
  std::int32_t accum = 0;
  std::int32_t micro_step = 0;  // accum modulo grad_acc_steps where that is known, else accum
  std::int32_t call = 0;
  std::uint64_t seq = 0;
  std::uint32_t flags = 0;
  // Of the tensor measured; nullptr: not known. In RunRows::shapes, or where RunStream keeps them.
  const Shape* shape = nullptr;
  RowState state;
};

// Whether a NaN or an infinity is among the row's elements.
bool is_bad(const ReadRow& row);

struct ReadScalar {
  std::int32_t restart = 0;
  std::int32_t rank = 0;
  std::int64_t step = 0;
  std::string name;
  double value = 0.0;
  std::uint64_t seq = 0;  // 0: the source was not asked
};

// From this step on, until the next one with the same optimizer, group and name.
struct ReadDeclared {
  std::int32_t restart = 0;
  std::int32_t rank = 0;
  std::int64_t step = 0;
  std::int32_t optimizer = 0;
  std::int32_t group = 0;
  std::int64_t window = -1;  // of the optimizer; -1: the source does not say
  DeclaredValue value;
};

// A text or a histogram (docs/formats.md) at a place of its own.
struct ReadPayload {
  std::int32_t restart = 0;
  std::int32_t rank = 0;
  std::uint32_t series = 0;  // index into RunRows::series
  std::int64_t step = 0;
  std::int32_t attempt = 0;
  Fate fate = Fate::unknown;
  Payload payload;
};

struct ReadAlert {
  std::int32_t restart = 0;
  std::int32_t rank = 0;
  Alert alert;  // key.series is an index into RunRows::series; repeats joined, with their count
};

struct ReadGap {
  std::int32_t restart = 0;
  std::int32_t rank = 0;
  Gap gap;
};

// Ranks that were to record (world_size and config.ranks of run.json) and have no directory, in any
// restart: deleted, not copied along, or not there yet.
struct MissingRanks {
  std::vector<int> ranks;  // ascending
  int world_size = 0;      // of how many; 0 where no run.json says
};
// "rank 1 of 2 is missing", "ranks 1 4-7 of 8 are missing"; empty when none is.
std::string missing_text(const MissingRanks& missing);
// Ascending ranks as people write them: "0-3 7".
std::string ranks_text(const std::vector<int>& ranks);

struct RunRows {
  std::vector<Series> series;
  // Those of rows, which point here.
  std::shared_ptr<std::set<Shape>> shapes = std::make_shared<std::set<Shape>>();
  std::vector<ReadRow> rows;        // by restart, step, attempt, rank, seq
  std::vector<ReadScalar> scalars;  // by restart, step, rank
  // By step, restart, rank; of steps before the first one asked for, the last of each value.
  std::vector<ReadDeclared> declared;
  std::vector<ReadPayload> payloads;  // by restart, step, attempt, rank, seq
  std::vector<ReadAlert> alerts;
  std::vector<ReadGap> gaps;
  std::vector<std::string> kinds;  // every kind of the ranks read, selected or not, ascending
  std::vector<int> ranks;          // every rank the run has, ascending
  // Of patterns of `include` that take no name of the run, those that would behind "**.".
  std::vector<std::string> suggested;
  MissingRanks missing;        // of the ranks selected
  std::vector<Damage> damage;  // a torn tail of a killed run is not damage; rows that a run
                               // stopped in order has written and the log lacks are
  std::int64_t torn_tails = 0;
  bool all_restarts = false;  // rows of steps that a later restart went through again, too
  int newest_restart = 0;     // of the ranks read
  // What restarts before the newest found that is not finite, a sentence each.
  std::vector<std::string> earlier;
  // Why the record of the ranks read is not complete, a sentence each: nothing recorded, rows
  // dropped, a process that is gone without having stopped.
  std::vector<std::string> incomplete;
};

// Reads every rank and restart under `run` (also of a run being written). A window whose outcome is
// not known (yet) has fate unknown and the step that follows from the window before it.
// Merging: parts of one whole are merged (each distinct part once), identical values are taken once
// if every rank agrees to the bit and left per rank if not; the rest stays per rank. Rows of one
// rank and part that differ in seq alone (several backwards through one forward) are merged by
// their order, the k-th of each with the k-th of the others, and left per rank where not all have
// as many. A merged value whose count is not the full tensor's has the flag partial. Throws
// std::runtime_error when the directory holds no run and std::invalid_argument for a kind that
// neither the run nor trainmon knows.
RunRows read_run(const std::filesystem::path& run, const ReadOptions& options = {});

// Where the run first went wrong: the non-finite row that comes first by step (with all_restarts,
// then by restart), attempt, then weights before the step, then by accum and, within one, forward,
// backward, reduced gradients, optimizer state, weights after the step; then by seq. Gradients of
// windows that were skipped count only when nothing else is bad: a loss scaler makes and drops such
// steps as its way of working. What a run says while it goes on is the same (base/first_bad.h).
struct FirstBad {
  ReadRow row;
  Series series;
  std::vector<int> ranks;  // every rank with a bad row at that same place, ascending
  // Where it came from, where that is not this tensor: "the forward or the loss"; then why that is
  // so, and what is known of the module.
  std::string came_from;
  std::string why;
  std::string module;
  struct OfRestart {
    ReadRow row;
    Series series;
  };
  std::vector<OfRestart> restarts;  // the first of each restart that has one, ascending
};
std::optional<FirstBad> first_bad(const RunRows& rows);

// The same over a run on disk, all restarts of it, whose rows are looked at one by one and not
// kept. Throws as read_run().
struct FirstBadOfRun {
  RunRows run;  // without rows and payloads
  std::optional<FirstBad> found;
  std::int64_t rows = 0;     // that were looked at
  std::int64_t partial = 0;  // rows that were merged and lack elements
};
FirstBadOfRun first_bad(const std::filesystem::path& run, ReadOptions options);

// The largest (or, for `smallest`, smallest) values of a statistic, one row per series over the
// rows given; NaN first, of equal values the earliest, tensors of integers last. Rows without
// elements or without values are left out.
struct Ranked {
  ReadRow row;
  double value = 0.0;
};
std::vector<Ranked> top(const RunRows& rows, Stat stat, std::size_t count, bool smallest = false);

// Rows that lack elements of their tensor.
std::int64_t partial_rows(const RunRows& rows);

// top() over a run on disk, whose rows are looked at one by one and not kept. Throws as
// read_run().
struct TopOfRun {
  RunRows run;                 // without rows and payloads
  std::vector<Ranked> ranked;  // series of its rows are those of `run`
  std::int64_t rows = 0;       // that were looked at
  std::int64_t tensors = 0;    // among which these are the first
  std::int64_t partial = 0;    // rows that were merged and lack elements
};
TopOfRun top(const std::filesystem::path& run, const ReadOptions& options, Stat stat,
             std::size_t count, bool smallest = false);

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
  std::int64_t files = 0;        // anomaly.json files, or ranks and restarts of a run
  std::vector<Damage> damage;    // files and entries that could not be used
  MissingRanks missing;          // of a run
  std::vector<std::string> incomplete;  // of a run: why its record is not complete, as RunRows
};
// Reads DIRECTORY/*/anomaly.json or, where there is none, the alerts of the run DIRECTORY. Only
// the given steps; empty means all. Throws std::runtime_error when it is neither.
AnomalyList read_anomalies(const std::filesystem::path& directory,
                           const std::set<std::int64_t>& steps = {});
// By step, micro step, then as a fault passes through a step: what modules compute in forward
// (actv, qkt, sr, router_*), gradients (actv_grad, pre_grad, acc_grad, post_grad), all the rest
// (optimizer state, weights); in forward by virtual and then by real pipeline stage ascending,
// else descending; then by call. Equal ones by rank and key: no order depends on the input's.
// The order `msprobe` is that of anomaly.json files: its forward is actv alone, its optimizer
// exp_avg and exp_avg_sq, and whatever it does not know comes first, with stages descending.
enum class AnomalyOrder : std::uint8_t { run, msprobe };
void sort_anomalies(std::vector<Anomaly>& anomalies, AnomalyOrder order = AnomalyOrder::run);
// Replaces `file` by one JSON object of these entries, in order. Throws SinkError.
void write_anomalies(const std::filesystem::path& file, const std::vector<Anomaly>& anomalies);

// What a monitor with a budget chose, as it last said.
struct RankBudget {
  double budget = 0.0;          // share of the step's time
  std::optional<double> share;  // of it that is used, as measured; unset: too few steps so far
  std::int64_t part = 1;        // of one step in `every`, `part` in `of` are recorded
  std::int64_t of = 1;
  std::int64_t every = 1;
  std::int64_t since_step = 0;
  bool out_of_reach = false;  // recording as little as possible is over budget
};

// What became of the process that wrote a rank and restart.
enum class WriterState : std::uint8_t {
  closed,   // it stopped in order
  running,  // it is alive on this machine
  gone,     // it is not, and did not stop in order: killed, or it could not write at the end
  unknown,  // it did not stop in order, and another machine must be asked
};

// What one rank and restart produced, and where it went.
struct RankAccount {
  int rank = 0;
  int restart = 0;
  std::filesystem::path directory;
  std::string run_id;
  std::string started;
  std::string host;
  bool has_health = false;  // health.json was there and readable
  bool closed = false;      // stopped in order
  WriterState writer = WriterState::unknown;
  std::optional<std::int64_t> last_step;  // of the clock, of which the log has anything
  std::int64_t last_time_ns = 0;          // of the newest batch, since 1970; 0: none
  Health health;
  std::optional<RankBudget> budget;
  std::int64_t log_rows = 0;  // rows that can be read from the log
  std::int64_t log_files = 0;
  std::int64_t log_bytes = 0;
  std::int64_t torn_tails = 0;
  std::vector<std::string> covered;
  std::map<std::string, std::string> not_covered;  // what -> why
  // Everything that does not add up, as sentences; empty when all does. For a run that is still
  // written or was killed, only what cannot be explained by that.
  std::vector<std::string> faults;
  std::vector<std::string> incomplete;  // as RunRows has it
};
struct Account {
  std::vector<RankAccount> ranks;  // by rank, restart
  MissingRanks missing;
  std::vector<std::string> earlier;  // as RunRows has it
  std::vector<Damage> damage;
  std::int64_t rows() const;
};
// Throws std::runtime_error as read_run() does.
Account account(const std::filesystem::path& run);

}  // namespace trainmon
