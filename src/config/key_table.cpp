// Every configuration key with its range, choices and meaning.
#include "config/key_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <utility>

#include "base/text.h"
#include "model/kinds.h"
#include "sinks/sinks.h"

namespace trainmon {
namespace {

using std::string_view;

constexpr std::array<string_view, 2> kMomentsAt = {"after_step", "before_step"};
constexpr std::array<string_view, 3> kModules = {"auto", "all", "blocks"};
constexpr std::array<string_view, 3> kLayouts = {"bhsd", "bshd", "sbhd"};
constexpr std::array<string_view, 3> kCausal = {"auto", "yes", "no"};
constexpr std::array<string_view, 2> kCollectives = {"functions", "all"};
constexpr std::array<string_view, 7> kAlertStats = {"norm",   "mean",  "min", "max",
                                                    "absmax", "zeros", "nans"};
constexpr std::array<string_view, 9> kSamples = {"",     "1/2",  "1/4",   "1/8",  "1/16",
                                                 "1/32", "1/64", "1/128", "1/256"};
const std::vector<string_view> kSinks = [] {
  std::vector<string_view> names;
  for (const SinkType& type : sink_types()) names.push_back(type.name);
  return names;
}();
constexpr std::array<string_view, 2> kBackends = {"auto", "ops"};
constexpr std::array<string_view, 3> kFsyncs = {"never", "segment", "flush"};
constexpr std::array<string_view, 3> kOverflows = {"drop_newest", "drop_oldest", "block"};

Key plain(const Basics& basics) {
  return {basics};
}
Key number(const Basics& basics, double minimum, double maximum) {
  Key key = plain(basics);
  key.minimum = minimum;
  key.maximum = maximum;
  return key;
}
Key integer(const Basics& basics, std::int64_t minimum, std::int64_t maximum) {
  return number(basics, static_cast<double>(minimum), static_cast<double>(maximum));
}
Key some(const Basics& basics, std::span<const string_view> choices) {
  Key key = plain(basics);
  key.text = Text::choice;
  key.choices = choices;
  return key;
}
Key choice(const Basics& basics, std::span<const string_view> choices) {
  Key key = some(basics, choices);
  key.may_be_empty = false;
  return key;
}
Key patterns(const Basics& basics) {
  Key key = plain(basics);
  key.text = Text::name_pattern;
  return key;
}

using enum Subject;
using enum Follower;
using enum Shown;

// One entry each, as Basics says, then its range or choices.
const std::array kTable = {
    choice(
        {"kinds", &Config::kinds, what, hooks, at_first, R"(["grads", "activations"])",
         "what to watch: kinds, or groups of them; all: every kind that needs no further choice"},
        kind_choices()),
    plain({"checks", &Config::checks, what, nobody, at_first, "true",
           "also watch grads, weights, moments and update, and record of each what trainmon "
           "diagnose compares: a fingerprint and a sketch"}),
    patterns({"include", &Config::include, what, hooks, at_first, R"(["layers.*.mlp", "head"])",
              "name patterns to watch; empty: every name"}),
    patterns({"exclude", &Config::exclude, what, hooks, at_first, R"(["**.bias"])",
              "name patterns not to watch"}),
    integer({"every", &Config::every, when, recorder, at_first, "10",
             "record one step in this many; null: 1 up to four ranks, else 10"},
            1, kMaxInteger),
    number({"budget", &Config::budget, when, hooks, on_request, R"("1%")",
            "most of the step's time that monitoring may take: fewer steps are recorded to keep to "
            "it; null: no limit"},
           0.0001, 0.5),
    integer({"start_step", &Config::start_step, when, recorder, on_request, "1000",
             "first step that may be recorded"},
            0, kMaxInteger),
    integer({"stop_step", &Config::stop_step, when, recorder, on_request, "2000",
             "first step no longer recorded, greater than start_step; null: none"},
            1, kMaxInteger),
    integer({"ranks", &Config::ranks, when, recorder, on_request, "[0, 8]",
             "ranks that record; empty: all"},
            0, kMaxInt),
    plain({"out", &Config::out, files, nobody, at_first, R"("runs/a")",
           "run directory; empty: trainmon_runs/<run id or \"local\">"}),
    some({"sinks", &Config::sinks, files, nobody, at_first, R"(["log", "tensorboard"])",
          "where rows go; empty: only to latest() and alerts; memory is for programs in C++"},
         kSinks),
    number({"eps", &Config::eps, measuring, nobody, on_request, "1e-06",
            "an element counts as zero when |x| < eps"},
           1e-300, 1e300),
    integer({"threads", &Config::threads, measuring, nobody, on_request, "4",
             "threads that measure one large tensor"},
            1, 256),
    choice({"sample", &Config::sample, measuring, hooks, at_first, R"("1/16")",
            "share of their blocks that is read of actv and actv_grad, at random places, for "
            "estimates; other kinds are read whole; empty: so are these"},
           kSamples),
    plain({"reread", &Config::reread, measuring, hooks, at_first, "false",
           "whether a tensor is read for each module that returns it or is given it; false: once, "
           "while nothing that autograd counts has changed it"}),
    plain({"inside_compiled", &Config::inside_compiled, measuring, hooks, at_first, "true",
           "whether activations inside torch.compile are read: the compiler then rounds at other "
           "places, which may change the last bits of the training"}),
    integer({"canary_every", &Config::canary_every, measuring, hooks, at_first, "16",
             "compute a canary in one step in this many: kinds canary_actv and canary_grad"},
            1, kMaxInteger),
    plain({"input_grads", &Config::input_grads, details, hooks, on_request, "false",
           "whether actv_grad includes the gradients of module inputs"}),
    choice({"modules", &Config::modules, details, hooks, on_request, R"("blocks")",
            "whose activations are read: of all modules, or of repeated blocks (layers of a "
            "transformer) alone; auto: all up to 500 modules, else blocks"},
           kModules),
    choice({"moments_at", &Config::moments_at, details, hooks, on_request, R"("before_step")",
            "when optimizer state is read: after the step, or before it"},
           kMomentsAt),
    patterns({"attention_modules", &Config::attention_modules, details, hooks, on_request,
              R"(["layers.*.attention"])",
              "modules given queries and keys, for the kinds of attention; empty: all that are"}),
    choice({"attention_layout", &Config::attention_layout, details, hooks, on_request, R"("bshd")",
            "dimensions of queries and keys: batch, heads, sequence, depth in this order"},
           kLayouts),
    choice({"attention_causal", &Config::attention_causal, details, hooks, on_request, R"("yes")",
            "whether a query sees no later key; auto: as the module says"},
           kCausal),
    patterns({"spectral_modules", &Config::spectral_modules, details, hooks, on_request,
              R"(["layers.*.mlp"])",
              "modules whose weight matrix the spectral kinds read; empty: all that have one"}),
    patterns({"router_modules", &Config::router_modules, details, hooks, on_request,
              R"(["layers.*.router"])",
              "expert routers, for the kinds of routers; empty: all that look like one"}),
    choice({"collectives", &Config::collectives, details, hooks, on_request, R"("all")",
            "what kind cc sees: functions of torch.distributed, or all (DDP's own, too; slower)"},
           kCollectives),
    plain({"collective_inputs", &Config::collective_inputs, details, hooks, on_request, "true",
           "whether kind cc also reads tensors before the call"}),
    plain({"collective_callers", &Config::collective_callers, details, hooks, on_request,
           R"(["optimizer\\.py"])",
           "regular expressions, one of which a frame \"path[line] function\" of the caller must "
           "match; empty: every call"}),
    number({"alert_deviation", &Config::alert_deviation, alerts, alert_rules, at_first, "0.5",
            "alert when a value is off its running mean by more than this share; 0: never"},
           0.0, 1e300),
    number({"alert_limit", &Config::alert_limit, alerts, alert_rules, at_first, "1000.0",
            "alert when a value's size exceeds this; 0: never"},
           0.0, 1e300),
    choice({"alert_stats", &Config::alert_stats, alerts, alert_rules, at_first,
            R"(["norm", "max"])", "statistics that alert_deviation and alert_limit look at"},
           kAlertStats),
    integer({"alert_warmup", &Config::alert_warmup, alerts, alert_rules, on_request, "100",
             "values of a series before one can deviate from their mean"},
            1, kMaxInt),
    integer({"grad_acc_steps", &Config::grad_acc_steps, when, nobody, on_request, "4",
             "backwards per step, where fixed and known; null: unknown"},
            1, kMaxInteger),
    integer({"start_iteration", &Config::start_iteration, when, nobody, on_request, "5000",
             "step number of the first window; null: the optimizer's own, else 0"},
            0, kMaxInteger),
    integer({"clock", &Config::clock, when, nobody, on_request, "1",
             "index of the optimizer whose steps activations follow"},
            0, kMaxInt),
    choice({"backend", &Config::backend, measuring, nobody, on_request, R"("ops")",
            "how tensors are measured: auto (by device) or ops (framework operations)"},
           kBackends),
    number({"queue_mb", &Config::queue_mb, limits, nobody, on_request, "256.0",
            "limit of what waits for the writer, in MB"},
           0.001, 1e6),
    choice({"overflow", &Config::overflow, limits, nobody, on_request, R"("block")",
            "what a full queue does"},
           kOverflows),
    number({"flush_seconds", &Config::flush_seconds, limits, nobody, on_request, "5.0",
            "at most this much is lost when the process is killed"},
           0.001, 3600.0),
    number({"stop_timeout_seconds", &Config::stop_timeout_seconds, limits, nobody, on_request,
            "30.0", "longest time stop() may take"},
           0.001, 3600.0),
    number({"device_timeout_seconds", &Config::device_timeout_seconds, limits, nobody, on_request,
            "60.0", "after this long a value still missing from a device is marked not ready"},
           0.001, 86400.0),
    number({"segment_mb", &Config::segment_mb, files, nobody, on_request, "256.0",
            "size of one log file, in MB"},
           0.001, 1e6),
    choice(
        {"fsync", &Config::fsync, files, nobody, on_request, R"("flush")",
         "forces the log to the disk, so that it survives a power cut: never; segment: each full "
         "log file; flush: each flush, too"},
        kFsyncs),
    number({"retention_mb", &Config::retention_mb, files, nobody, on_request, "4096.0",
            "most MB that the logs of a rank may take, of all its starts together: the oldest "
            "are deleted; 0: all are kept"},
           0.0, 1e9),
    number({"retention_days", &Config::retention_days, files, nobody, on_request, "14.0",
            "log files of a rank last written before so many days are deleted, at a new file or "
            "within 10 minutes; 0: all are kept"},
           0.0, 36500.0),
    integer({"tensorboard_tags", &Config::tensorboard_tags, files, nobody, on_request, "500",
             "curves that the sink tensorboard writes per rank; what is beyond is aggregated per "
             "layer"},
            2, kMaxInt),
    number({"latest_mb", &Config::latest_mb, limits, nobody, on_request, "64.0",
            "limit of what latest() keeps, in MB"},
           0.001, 1e6),
    integer({"max_series", &Config::max_series, limits, nobody, on_request, "100000",
             "series (a tensor of a kind) that a rank records; rows of further ones are counted as "
             "dropped"},
            1, 1'000'000),
    integer({"max_scalars", &Config::max_scalars, limits, nobody, on_request, "1000",
             "names that log() takes; values of further ones are counted and not recorded"},
            1, 1'000'000),
    number({"recorder_mb", &Config::recorder_mb, files, nobody, on_request, "64.0",
            "size of the flight recorder, a file of the last events that outlives the process, in "
            "MB; 0: none"},
           0.0, 1e5),
    plain({"allow_volume", &Config::allow_volume, files, recorder, on_request, "true",
           "permit an estimated volume over 50 GB a day"}),
};

// Stands for a value of any type while the members of Config are counted.
struct AnyValue {
  template <typename T>
  operator T() const noexcept;
};
template <std::size_t... i>
constexpr bool takes_values(std::index_sequence<i...> /*so many*/) {
  return requires {
    Config{(static_cast<void>(i), AnyValue())...};
  };
}
template <std::size_t count = 1>
constexpr std::size_t config_members() {
  if constexpr (takes_values(std::make_index_sequence<count + 1>())) {
    return config_members<count + 1>();
  }
  return count;
}
static_assert(kTable.size() == config_members(),
              "a member of Config has no key, or a key no member of its own");

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
  for (string_view name : key.choices) text += name.empty() ? " \"\"" : " " + std::string(name);
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

bool differ(const Config& a, const Config& b, Follower follower) {
  const auto differs = [&](const Key& key) {
    return std::visit([&](auto member) { return a.*member != b.*member; }, key.field);
  };
  return std::any_of(kTable.begin(), kTable.end(),
                     [&](const Key& key) { return key.follower == follower && differs(key); });
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
