// Every configuration key with its range, choices and meaning.
#include "config/key_table.h"

#include <array>
#include <cmath>

#include "base/text.h"
#include "trainmon/record.h"

namespace trainmon {
namespace {

using std::string_view;

constexpr std::array<string_view, 30> kKinds = {"grads",
                                                "weights",
                                                "moments",
                                                "activations",
                                                "attention",
                                                "spectral",
                                                "router",
                                                kind::kGradUnreduced,
                                                kind::kGradReduced,
                                                kind::kGradMicro,
                                                kind::kParamOrigin,
                                                kind::kParamUpdated,
                                                "exp_avg",
                                                "exp_avg_sq",
                                                "exp_inf",
                                                "momentum_buffer",
                                                "square_avg",
                                                kind::kActv,
                                                kind::kActvGrad,
                                                kind::kCc,
                                                kind::kMgDirection,
                                                kind::kUpdateRatio,
                                                kind::kStack,
                                                kind::kAttnEntropy,
                                                kind::kAttnMax,
                                                kind::kAttnMaxLogit,
                                                kind::kStableRank,
                                                kind::kSpectralNorm,
                                                kind::kRouterSimilarity,
                                                kind::kRouterEntropy};
constexpr std::array<string_view, 2> kMomentsAt = {"after_step", "before_step"};
constexpr std::array<string_view, 3> kLayouts = {"bhsd", "bshd", "sbhd"};
constexpr std::array<string_view, 3> kCausal = {"auto", "yes", "no"};
constexpr std::array<string_view, 2> kCollectives = {"functions", "all"};
constexpr std::array<string_view, 7> kAlertStats = {"norm",   "mean",  "min", "max",
                                                    "absmax", "zeros", "nans"};
constexpr std::array<string_view, 5> kSinks = {"log", "csv", "sqlite", "tensorboard", "memory"};
constexpr std::array<string_view, 2> kBackends = {"auto", "ops"};
constexpr std::array<string_view, 3> kOverflows = {"drop_newest", "drop_oldest", "block"};

Key number(string_view name, Field field, double minimum, double maximum, string_view meaning) {
  return {.name = name, .field = field, .meaning = meaning, .minimum = minimum, .maximum = maximum};
}
Key integer(string_view name, Field field, std::int64_t minimum, std::int64_t maximum,
            string_view meaning) {
  return number(name, field, static_cast<double>(minimum), static_cast<double>(maximum), meaning);
}
Key plain(string_view name, Field field, string_view meaning) {
  return {.name = name, .field = field, .meaning = meaning};
}
Key choice(string_view name, Field field, std::span<const string_view> choices,
           string_view meaning) {
  return {.name = name,
          .field = field,
          .meaning = meaning,
          .text = Text::choice,
          .choices = choices,
          .may_be_empty = false};
}
Key some(string_view name, Field field, std::span<const string_view> choices, string_view meaning) {
  Key key = choice(name, field, choices, meaning);
  key.may_be_empty = true;
  return key;
}
Key patterns(string_view name, Field field, string_view meaning) {
  return {.name = name, .field = field, .meaning = meaning, .text = Text::name_pattern};
}

// One line each: name, field, range or choices, meaning.
const std::array<Key, 39> kTable = {
    choice("kinds", &Config::kinds, kKinds, "what to watch: kinds, or groups of them"),
    patterns("include", &Config::include, "name patterns to watch; empty: every name"),
    patterns("exclude", &Config::exclude, "name patterns not to watch"),
    integer("every", &Config::every, 1, kMaxInteger,
            "record one step in this many; null: 1 up to four ranks, else 10"),
    number(
        "budget", &Config::budget, 0.0001, 0.5,
        "most of the step's time that monitoring may take: fewer steps are recorded to keep to it; "
        "null: no limit"),
    integer("start_step", &Config::start_step, 0, kMaxInteger, "first step that may be recorded"),
    integer("stop_step", &Config::stop_step, 1, kMaxInteger,
            "first step no longer recorded, greater than start_step; null: none"),
    integer("ranks", &Config::ranks, 0, kMaxInt, "ranks that record; empty: all"),
    plain("out", &Config::out, "run directory; empty: trainmon_runs/<run id or \"local\">"),
    some("sinks", &Config::sinks, kSinks, "where rows go; empty: only to latest() and alerts"),
    number("eps", &Config::eps, 1e-300, 1e300, "an element counts as zero when |x| < eps"),
    integer("threads", &Config::threads, 1, 256, "threads that measure one large tensor"),
    plain("input_grads", &Config::input_grads,
          "whether actv_grad includes the gradients of module inputs"),
    choice("moments_at", &Config::moments_at, kMomentsAt,
           "when optimizer state is read: after the step, or before it"),
    patterns("attention_modules", &Config::attention_modules,
             "modules given queries and keys, for the kinds of attention; empty: all that are"),
    choice("attention_layout", &Config::attention_layout, kLayouts,
           "dimensions of queries and keys: batch, heads, sequence, depth in this order"),
    choice("attention_causal", &Config::attention_causal, kCausal,
           "whether a query sees no later key; auto: as the module says"),
    patterns("spectral_modules", &Config::spectral_modules,
             "modules whose weight matrix the spectral kinds read; empty: all that have one"),
    patterns("router_modules", &Config::router_modules,
             "expert routers, for the kinds of routers; empty: all that look like one"),
    choice("collectives", &Config::collectives, kCollectives,
           "what kind cc sees: functions of torch.distributed, or all (DDP's own, too; slower)"),
    plain("collective_inputs", &Config::collective_inputs,
          "whether kind cc also reads tensors before the call"),
    plain("collective_callers", &Config::collective_callers,
          "regular expressions, one of which a frame \"path[line] function\" of the caller must "
          "match; empty: every call"),
    number("alert_deviation", &Config::alert_deviation, 0.0, 1e300,
           "alert when a value is off its running mean by more than this share; 0: never"),
    number("alert_limit", &Config::alert_limit, 0.0, 1e300,
           "alert when a value's size exceeds this; 0: never"),
    choice("alert_stats", &Config::alert_stats, kAlertStats,
           "statistics that alert_deviation and alert_limit look at"),
    integer("alert_warmup", &Config::alert_warmup, 1, kMaxInt,
            "values of a series before one can deviate from their mean"),
    integer("grad_acc_steps", &Config::grad_acc_steps, 1, kMaxInteger,
            "backwards per step, where fixed and known; null: unknown"),
    integer("start_iteration", &Config::start_iteration, 0, kMaxInteger,
            "step number of the first window; null: the optimizer's own, else 0"),
    integer("clock", &Config::clock, 0, kMaxInt,
            "index of the optimizer whose steps activations follow"),
    choice("backend", &Config::backend, kBackends,
           "how tensors are measured: auto (by device) or ops (framework operations)"),
    number("queue_mb", &Config::queue_mb, 0.001, 1e6, "limit of what waits for the writer, in MB"),
    choice("overflow", &Config::overflow, kOverflows, "what a full queue does"),
    number("flush_seconds", &Config::flush_seconds, 0.001, 3600.0,
           "at most this much is lost when the process is killed"),
    number("stop_timeout_seconds", &Config::stop_timeout_seconds, 0.001, 3600.0,
           "longest time stop() may take"),
    number("device_timeout_seconds", &Config::device_timeout_seconds, 0.001, 86400.0,
           "after this long a value still missing from a device is marked not ready"),
    number("segment_mb", &Config::segment_mb, 0.001, 1e6, "size of one log file, in MB"),
    integer(
        "tensorboard_tags", &Config::tensorboard_tags, 2, kMaxInt,
        "curves that the sink tensorboard writes per rank; what is beyond is aggregated per layer"),
    number("latest_mb", &Config::latest_mb, 0.001, 1e6, "limit of what latest() keeps, in MB"),
    plain("allow_volume", &Config::allow_volume, "permit an estimated volume over 50 GB a day"),
};

// Bounds in the way people write them: 1000000 rather than 1e+06.
std::string bound_text(double bound) {
  const bool plain = bound == std::floor(bound) && std::abs(bound) < 1e15;
  return plain ? std::to_string(static_cast<std::int64_t>(bound)) : number_text(bound);
}

std::string range_text(const Key& key) {
  if (key.maximum == static_cast<double>(kMaxInteger) ||
      key.maximum == static_cast<double>(kMaxInt)) {
    return " of at least " + bound_text(key.minimum);
  }
  return " from " + bound_text(key.minimum) + " to " + bound_text(key.maximum);
}

std::string text_expectation(const Key& key) {
  switch (key.text) {
    case Text::path:
      return "text without a NUL character";
    case Text::name_pattern:
      return "a name pattern such as \"layers.1\" or \"**.bias\" (components between single dots, "
             "\"**\" only on its own)";
    case Text::choice:
      break;
  }
  std::string text = "one of";
  for (string_view name : key.choices) text += " " + std::string(name);
  return text;
}

// One branch per type of field; every user of the table that tells types apart looks like this.
struct Expectation {
  const Key& key;
  std::string operator()(bool Config::*) const { return "true or false"; }
  std::string operator()(int Config::*) const { return "an integer" + range_text(key); }
  std::string operator()(std::int64_t Config::*) const { return "an integer" + range_text(key); }
  std::string operator()(std::optional<std::int64_t> Config::*) const {
    return "an integer" + range_text(key) + ", or null";
  }
  std::string operator()(std::optional<double> Config::*) const {
    return "a number" + range_text(key) + ", text such as \"1%\", or null";
  }
  std::string operator()(double Config::*) const { return "a number" + range_text(key); }
  std::string operator()(std::string Config::*) const { return text_expectation(key); }
  std::string operator()(BackendChoice Config::*) const { return text_expectation(key); }
  std::string operator()(Overflow Config::*) const { return text_expectation(key); }
  std::string operator()(std::vector<int> Config::*) const {
    return "a list, each element once and " + element_expectation(key);
  }
  std::string operator()(std::vector<std::string> Config::*) const {
    return std::string(key.may_be_empty ? "a list" : "a list of at least one") +
           ", each element once and " + element_expectation(key);
  }
};

}  // namespace

std::span<const Key> key_table() {
  return kTable;
}

const Key* find_key(string_view name) {
  for (const Key& key : kTable) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

bool is_list(const Key& key) {
  return std::holds_alternative<std::vector<int> Config::*>(key.field) ||
         std::holds_alternative<std::vector<std::string> Config::*>(key.field);
}

std::string expectation(const Key& key) {
  return std::visit(Expectation{key}, key.field);
}

std::string element_expectation(const Key& key) {
  if (std::holds_alternative<std::vector<int> Config::*>(key.field)) {
    return "an integer" + range_text(key);
  }
  return text_expectation(key);
}

std::string choice_hint(const Key& key, string_view text) {
  const std::optional<std::string> near = nearest_name(text, key.choices);
  return near ? "; did you mean \"" + *near + "\"?" : "";
}

bool pattern_ok(string_view pattern) {
  std::size_t begin = 0;
  while (true) {
    const std::size_t end = pattern.find('.', begin);
    const string_view component = pattern.substr(begin, end - begin);
    if (component.empty()) return false;
    if (component != "**" && component.find("**") != string_view::npos) return false;
    if (end == string_view::npos) return true;
    begin = end + 1;
  }
}

}  // namespace trainmon
