// The configuration of a monitor: one aggregate, one JSON reader, one validator, one schema.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainmon/error.h"
#include "trainmon/overflow.h"
#include "trainmon/stat.h"

namespace trainmon {

enum class BackendChoice : std::uint8_t { automatic, ops };

// Every key a user can write, with its default. Names are the JSON keys and the keyword arguments
// of trainmon.watch; units are part of the name.
struct Config {
  std::vector<std::string> kinds = {"grads"};  // kinds, or groups such as grads (expand_kinds)
  std::vector<std::string> include;            // name patterns; empty = every name
  std::vector<std::string> exclude;            // name patterns taken out again
  std::optional<std::int64_t> every;  // record one step in `every`; unset: 1 up to 4 ranks, else 10
  std::optional<double> budget;  // most of the step's time for monitoring (0.01: 1 %); unset: any
  std::int64_t start_step = 0;   // first step that may be recorded
  std::optional<std::int64_t> stop_step;  // first step no longer recorded; unset: none
  std::vector<int> ranks;                 // ranks that record; empty = all
  std::string out;                        // run directory; "" = trainmon_runs/<run id or "local">
  std::vector<std::string> sinks = {"log"};  // log csv sqlite tensorboard memory
  double eps = kDefaultEps;                  // threshold of the statistic `zeros`
  int threads = 1;                           // threads per large tensor
  bool checks = false;                       // kinds that obey equations, with step checks
  std::string sample;  // share of a tensor's blocks read for activations, "1/16"; "" = all
  bool reread = true;  // a tensor is read for each module that returns it or is given it
  bool inside_compiled = false;           // activations of modules inside torch.compile, too
  std::int64_t canary_every = 1;          // steps from one canary to the next
  bool input_grads = true;                // actv_grad also of module inputs
  std::string modules = "auto";           // whose activations: auto, all, blocks
  std::string moments_at = "after_step";  // optimizer state is read "after_step" or "before_step"
  std::vector<std::string> attention_modules;  // name patterns; empty = every one that qualifies
  std::string attention_layout = "bhsd";       // of queries and keys: bhsd bshd sbhd
  std::string attention_causal = "auto";       // auto (told by the module), yes, no
  std::vector<std::string> spectral_modules;   // name patterns; empty = every linear layer
  std::vector<std::string> router_modules;     // name patterns; empty = every one that looks so
  std::string collectives = "functions";  // kind cc sees: functions (of torch.distributed), all
  bool collective_inputs = false;         // kind cc also before the call
  std::vector<std::string> collective_callers;  // regular expressions on "path[line] function"
  double alert_deviation = 0.0;  // alert when off the running mean by this share; 0 = off
  double alert_limit = 0.0;      // alert when |value| exceeds it; 0 = off
  std::vector<std::string> alert_stats = {"norm"};  // statistics those two look at
  int alert_warmup = 10;  // values of a series before its deviation can be an alert
  std::optional<std::int64_t> grad_acc_steps;   // backwards per step, where fixed and known
  std::optional<std::int64_t> start_iteration;  // step number of the first window
  int clock = 0;                                // index of the optimizer that activations follow
  BackendChoice backend = BackendChoice::automatic;  // "auto", "ops"
  double queue_mb = 64.0;                     // limit of sealed batches waiting for the writer
  Overflow overflow = Overflow::drop_newest;  // what a full queue does
  double flush_seconds = 1.0;                 // at most this much is lost by a kill
  double stop_timeout_seconds = 2.0;          // bound of stop()
  double device_timeout_seconds = 30.0;       // after it late values are marked "not ready"
  double segment_mb = 64.0;                   // size of a log segment
  std::string fsync = "never";                // when the log is forced to disk: segment, flush
  double retention_mb = 0.0;                  // of a rank's log, what stays; 0 = all
  double retention_days = 0.0;                // of a rank's log, how long it stays; 0 = for ever
  int tensorboard_tags = 2000;                // curves of the sink tensorboard
  double latest_mb = 16.0;                    // bound of what mon.latest() keeps
  std::int64_t max_series = 1'000'000;        // tensors' curves per rank; rows beyond are counted
  std::int64_t max_scalars = 10'000;          // names that are logged; values beyond are counted
  double recorder_mb = 0.0;                   // size of the flight recorder's file; 0 = none
  bool allow_volume = false;                  // permit more than 50 GB a day
};

// Reads JSON text (an object; comments are not JSON). Throws ConfigError naming every fault at
// once, syntax with line and column, and unknown keys with the nearest known one. Other faults are
// wrong types, values out of range, duplicate keys, and limits (1 MiB, depth 32). A "$schema" key
// is for editors: ignored.
Config config_from_json(std::string_view text);
// Faults of an already typed Config, empty when valid; config_from_json calls it.
std::vector<std::string> validate(const Config& config);
// The effective configuration as JSON, every key present (unset values as null), keys in table
// order.
std::string config_to_json(const Config& config);
// JSON Schema 2020-12 generated from the same table of keys.
std::string config_schema();

// The individual kind names a list of kinds and groups stands for, in a fixed order.
//   grads        grad_unreduced grad_reduced
//   weights      param_origin param_updated
//   moments      moments (any optimizer state)
//   activations  actv actv_grad
//   attention    attn_entropy attn_max attn_max_logit
//   spectral     stable_rank spectral_norm
//   router       router_similarity router_entropy
//   all          all of these but those of attention, whose layout is a choice (attention_layout)
//
// Also single state names: exp_avg exp_avg_sq max_exp_avg_sq exp_inf momentum_buffer square_avg;
// moments takes them all. In no group: grad_micro mg_direction update_ratio cc stack. ConfigError
// for anything else.
std::vector<std::string> expand_kinds(const std::vector<std::string>& kinds);

// Name patterns match on component boundaries: "layers.1" takes "layers.1" and "layers.1.weight",
// never "layers.10". "*" stands for one component or a part of it, "**" for any number of them
// (so "**.bias" takes every bias). Patterns start at the first component. "(root)" takes "" alone.
// A name is watched when (include empty or one matches) and no exclude matches.
bool name_selected(std::string_view name, const std::vector<std::string>& include,
                   const std::vector<std::string>& exclude);

}  // namespace trainmon
