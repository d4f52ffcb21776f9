// The table of failpoint rules; an empty file in builds without them.
#include "base/failpoint.h"

#if defined(TRAINMON_FAILPOINTS)

#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace trainmon {
namespace {

struct FailRule {
  std::string site;
  std::string action;
  long argument = 0;
  std::int64_t first = 1;
  bool every_later = false;
};

struct FailTable {
  std::mutex mutex;
  std::vector<FailRule> rules;
  std::map<std::string, std::int64_t, std::less<>> hits;
  bool is_set = false;
};

FailTable& table() {
  static auto* instance = new FailTable;  // outlives every thread
  return *instance;
}

long number_in(std::string_view text, std::string_view rule) {
  long value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size() || value < 0) {
    throw std::invalid_argument("failpoint rule '" + std::string(rule) + "': bad number '" +
                                std::string(text) + "'");
  }
  return value;
}

FailRule parse_rule(std::string_view text) {
  const auto bad = [&](const char* why) {
    return std::invalid_argument("failpoint rule '" + std::string(text) + "': " + why);
  };
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos) throw bad("no '='");
  FailRule rule;
  rule.site = text.substr(0, equals);
  std::string_view action = text.substr(equals + 1);
  if (action.ends_with('+')) {
    rule.every_later = true;
    action.remove_suffix(1);
  }
  if (const std::size_t at = action.find('@'); at != std::string_view::npos) {
    rule.first = number_in(action.substr(at + 1), text);
    action = action.substr(0, at);
  }
  const std::size_t colon = action.find(':');
  rule.action = action.substr(0, colon);
  const bool takes_number =
      rule.action == "errno" || rule.action == "short" || rule.action == "sleep";
  if (!takes_number && rule.action != "abort" && rule.action != "kill" && rule.action != "throw") {
    throw bad("unknown action");
  }
  if (takes_number != (colon != std::string_view::npos)) throw bad("number missing or too many");
  if (takes_number) rule.argument = number_in(action.substr(colon + 1), text);
  return rule;
}

void set_locked(FailTable& t, std::string_view spec) {
  std::vector<FailRule> rules;
  while (!spec.empty()) {
    const std::size_t end = spec.find(';');
    if (const std::string_view rule = spec.substr(0, end); !rule.empty()) {
      rules.push_back(parse_rule(rule));
    }
    spec.remove_prefix(end == std::string_view::npos ? spec.size() : end + 1);
  }
  t.rules = std::move(rules);
  t.hits.clear();
  t.is_set = true;
}

}  // namespace

Failure failpoint(std::string_view site) {
  FailTable& t = table();
  FailRule rule;
  {
    const std::lock_guard lock(t.mutex);
    if (!t.is_set) {
      const char* spec = std::getenv("TRAINMON_FAILPOINTS_SPEC");
      set_locked(t, spec == nullptr ? "" : spec);
    }
    const std::int64_t hit = ++t.hits[std::string(site)];
    for (const FailRule& candidate : t.rules) {
      const bool is_due = candidate.every_later ? hit >= candidate.first : hit == candidate.first;
      if (candidate.site == site && is_due) rule = candidate;
    }
    // Under the lock, so that no other thread passes a site once the process is to end.
    if (rule.action == "abort") std::abort();
    if (rule.action == "kill") std::raise(SIGKILL);
  }
  if (rule.action == "errno") return {static_cast<int>(rule.argument)};
  if (rule.action == "short") return {0, static_cast<std::size_t>(rule.argument)};
  if (rule.action == "sleep") {
    std::this_thread::sleep_for(std::chrono::milliseconds(rule.argument));
  }
  if (rule.action == "throw") throw std::runtime_error("failpoint " + std::string(site));
  return {};
}

void set_failpoints(std::string_view spec) {
  FailTable& t = table();
  const std::lock_guard lock(t.mutex);
  set_locked(t, spec);
}

std::int64_t failpoint_hits(std::string_view site) {
  FailTable& t = table();
  const std::lock_guard lock(t.mutex);
  const auto found = t.hits.find(site);
  return found == t.hits.end() ? 0 : found->second;
}

}  // namespace trainmon

#endif
