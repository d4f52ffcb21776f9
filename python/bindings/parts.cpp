// Parts of a monitor from JSON, and alerts on their way to Python.
#include "parts.h"

#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <utility>

#include "sinks/grad_stats.h"
#include "sinks/msprobe_anomaly.h"

namespace trainmon {
namespace {

using nlohmann::json;

// A JSON object of which every key is read: one that is left over is misspelled.
class Fields {
 public:
  explicit Fields(const json& given) : given_(given) {}

  bool has(const char* key) {
    read_.insert(key);
    return given_.contains(key);
  }
  const json& at(const char* key) {
    read_.insert(key);
    return given_.at(key);
  }
  template <typename T>
  T value(const char* key, const T& otherwise) {
    return has(key) ? given_.at(key).get<T>() : otherwise;
  }
  void end() const {
    for (const auto& [key, value] : given_.items()) {
      if (!read_.contains(key)) throw std::invalid_argument("no part has a key '" + key + "'");
    }
  }

 private:
  const json& given_;
  std::set<std::string, std::less<>> read_;
};

std::vector<Stat> stats_of(const json& names) {
  std::vector<Stat> stats;
  for (const json& name : names) stats.push_back(stat_from_name(name.get<std::string>()).value());
  return stats;
}

MsprobeMonitor msprobe_monitor(Fields given) {
  MsprobeMonitor monitor{given.at("name").get<std::string>(),
                         given.at("kinds").get<std::vector<std::string>>(),
                         stats_of(given.at("ops")), given.at("by_kind").get<bool>()};
  given.end();
  return monitor;
}

MsprobeOptions msprobe_options(Fields given) {
  MsprobeOptions options;
  options.ops = stats_of(given.at("ops"));
  if (given.has("ndigits")) {
    const json& digits = given.at("ndigits");
    options.ndigits = digits.is_null() ? std::nullopt : std::optional(digits.get<int>());
  }
  options.steps_per_file = given.value("steps_per_file", options.steps_per_file);
  options.grad_acc_steps = given.value("grad_acc_steps", options.grad_acc_steps);
  options.micro_gradients = given.value("micro_gradients", options.micro_gradients);
  options.files = given.value("files", options.files);
  options.events = given.value("events", options.events);
  options.first_step = given.value("first_step", options.first_step);
  options.chunk_names = given.value("chunk_names", options.chunk_names);
  if (given.has("monitors")) {
    for (const json& one : given.at("monitors")) {
      options.monitors.push_back(msprobe_monitor(Fields(one)));
    }
  }
  given.end();
  return options;
}

GradProbeOptions grad_probe_options(Fields given) {
  GradProbeOptions options;
  ProbeRequest& request = options.request;
  request.intervals = given.at("intervals");
  request.bounds = given.at("bounds").get<std::vector<double>>();
  request.signs = static_cast<Signs>(given.at("planes").get<int>());
  request.digest = digest_from_name(given.at("digest").get<std::string>()).value();
  options.bound_texts = given.at("bound_texts").get<std::vector<std::string>>();
  options.sign_files = given.at("npy").get<bool>() ? SignFiles::npy : SignFiles::packed;
  options.digest_column = given.value("digest_column", options.digest_column);
  given.end();
  return options;
}

GradStatsOptions grad_stats_options(Fields given) {
  GradStatsOptions options;
  options.stats = stats_of(given.at("stats"));
  options.local = given.at("local").get<std::string>();
  options.global = given.at("global").get<std::string>();
  options.write_interval = given.at("write_interval");
  given.end();
  return options;
}

StatisticRule rule_of(Fields given) {
  if (given.has("deviation")) {
    DeviationRule rule{given.at("deviation"), stats_of(given.at("stats")), given.at("warmup"),
                       given.at("name")};
    given.end();
    return rule;
  }
  LimitRule rule;
  if (given.has("limit")) rule.limit = given.at("limit").get<double>();
  rule.stats = stats_of(given.at("stats"));
  rule.name = given.at("name");
  given.end();
  return rule;
}

bool same(const AlertEvent& event, const Alert& alert) {
  return event.alert.key.series == alert.key.series && event.alert.rule == alert.rule &&
         event.alert.stat == alert.stat;
}

}  // namespace

BoundParts parts_from_json(const std::string& text, const Identity& identity) {
  const json object = json::parse(text);
  Fields given(object);
  BoundParts bound;
  MonitorParts& parts = bound.parts;
  parts.directory = given.value("directory", std::string());
  MsprobeAnomalyOptions naming;
  naming.rank = identity.rank;
  if (given.has("msprobe")) {
    const MsprobeOptions options = msprobe_options(Fields(given.at("msprobe")));
    auto sink = make_msprobe_sink(options);
    bound.msprobe = sink.get();
    parts.sinks.push_back(std::move(sink));
    naming.micro_steps = options.grad_acc_steps;
    naming.micro_gradients = options.micro_gradients;
    parts.alert_text = [naming](const Alert& alert, const Series& series) {
      return "> " + msprobe_alert_message(alert, msprobe_tag(series, alert.key, naming));
    };
  }
  if (given.has("anomaly")) {
    Fields anomaly(given.at("anomaly"));
    naming.base = anomaly.at("base").get<std::string>();
    naming.pp_stage = anomaly.at("pp_stage");
    naming.group_mates = anomaly.at("group_mates").get<std::vector<int>>();
    anomaly.end();
    parts.sinks.push_back(make_msprobe_anomaly_sink(naming));
  }
  if (given.has("grad_probe")) {
    const GradProbeOptions options = grad_probe_options(Fields(given.at("grad_probe")));
    bound.grad_probe = options.request;
    parts.sinks.push_back(make_grad_probe_sink(options));
  }
  if (given.has("grad_stats")) {
    parts.sinks.push_back(make_grad_stats_sink(grad_stats_options(Fields(given.at("grad_stats")))));
  }
  if (given.has("rules") && !given.at("rules").empty()) {
    std::vector<StatisticRule> rules;
    for (const json& rule : given.at("rules")) {
      rules.push_back(rule_of(Fields(rule)));
      parts.alert_limit = std::min(parts.alert_limit, rule.value("limit", parts.alert_limit));
    }
    parts.rules.push_back(make_first_of_rule(rules, Telling{.every = true}));
  }
  if (given.value("queue", false)) {
    bound.alerts = std::make_shared<AlertQueue>();
    parts.on_alert = [queue = bound.alerts](const Alert& alert, const Series& series) {
      queue->push(alert, series);
    };
  }
  given.end();
  return bound;
}

void AlertQueue::push(const Alert& alert, const Series& series) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    for (AlertEvent& event : events_) {
      if (!same(event, alert)) continue;
      event.alert.count = std::max(event.alert.count + 1, alert.count);
      return;
    }
    if (events_.size() >= kMost) {
      ++untold_;
      return;
    }
    events_.push_back({alert, series});
  }
  changed_.notify_one();
}

std::vector<AlertEvent> AlertQueue::pop(std::chrono::nanoseconds timeout, std::int64_t& untold) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [&] { return closed_ || !events_.empty(); });
  std::vector<AlertEvent> taken(std::make_move_iterator(events_.begin()),
                                std::make_move_iterator(events_.end()));
  events_.clear();
  untold = std::exchange(untold_, 0);
  return taken;
}

void AlertQueue::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

}  // namespace trainmon
