// Claims by mkdir: it is atomic on every file system we know, network ones included.
#include "pipe/run_directory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/file.h"
#include "base/process.h"
#include "trainmon/version.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

constexpr int kMaxRestart = 9999;

std::string numbered(const char* prefix, int width, int number) {
  std::string digits = std::to_string(number);
  if (digits.size() < static_cast<std::size_t>(width)) {
    digits.insert(0, static_cast<std::size_t>(width) - digits.size(), '0');
  }
  return prefix + digits;
}

// The numbers of the restarts under one rank's directory, the newest first.
std::vector<int> restarts_in(const fs::path& rank_directory) {
  std::vector<int> numbers;
  std::error_code error;
  for (fs::directory_iterator entry(rank_directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    int number = -1;
    if (std::sscanf(name.c_str(), "restart_%d", &number) == 1 && number >= 0) {
      numbers.push_back(number);
    }
  }
  std::sort(numbers.begin(), numbers.end(), std::greater<>());
  return numbers;
}

// What run.json tells of a restart beside the start that `identity` is of. Another process may be
// just starting there, or a killed one have left none: then nothing.
struct Past {
  bool same_launch = false;
  bool other_world_size = false;
  std::string model_digest;
};

Past past_of(const fs::path& rank_directory, int restart, const Identity& identity) {
  Past past;
  try {
    const json run = json::parse(
        read_file(rank_directory / numbered("restart_", 4, restart) / "run.json", 1 << 24));
    past.same_launch = !identity.run_id.empty() && run.value("run_id", "") == identity.run_id &&
                       run.value("restart_count", -1) == identity.restart_count;
    past.other_world_size = run.value("world_size", identity.world_size) != identity.world_size;
    past.model_digest = run.value("model_digest", "");
  } catch (const std::exception&) {
  }
  return past;
}

json health_of_sink(const SinkHealth& sink) {
  return {{"name", sink.name},
          {"rows_written", sink.rows_written},
          {"batches_written", sink.batches_written},
          {"rows_dropped", sink.rows_dropped},
          {"degraded", sink.degraded}};
}

// Lossy on text that is not UTF-8: run.json must be written whatever a name holds.
std::string dump(const json& value) {
  return value.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace

fs::path default_out(const std::string& out, const std::string& run_id) {
  if (!out.empty()) return out;
  std::string name = run_id.empty() ? "local" : run_id;
  for (char& c : name) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_';
    if (!plain && c != '.') c = '_';
  }
  if (name.find_first_not_of('.') == std::string::npos) name = "local";
  return fs::path("trainmon_runs") / name;
}

RunInfo claim_directory(const fs::path& out, const Identity& identity, double eps) {
  const fs::path own = out / numbered("rank_", 5, identity.rank);
  make_directories(own);
  const std::vector<int> own_past = restarts_in(own);
  int restart = 0;
  if (!own_past.empty()) {
    restart = own_past.front() + 1;
    // Only with its own past: the stages of a pipeline are different models on different ranks.
    const std::string digest = past_of(own, own_past.front(), identity).model_digest;
    if (!digest.empty() && !identity.model_digest.empty() && digest != identity.model_digest) {
      throw std::runtime_error(
          "[out] " + out.string() +
          " holds the run of another model (names, shapes or dtypes differ); give this run its "
          "own directory with out=...");
    }
  }
  if (identity.rank != 0) {
    const fs::path first = out / numbered("rank_", 5, 0);
    const std::vector<int> first_past = restarts_in(first);
    for (const int number : first_past) {
      if (number < restart) break;
      const Past past = past_of(first, number, identity);
      if (past.other_world_size) {
        restart = number + 1;
      } else if (past.same_launch && number == first_past.front()) {
        restart = number;
      }
    }
  }
  for (; restart <= kMaxRestart; ++restart) {
    const fs::path directory = own / numbered("restart_", 4, restart);
    if (::mkdir(directory.c_str(), 0750) == 0) {
      RunInfo run;
      run.directory = fs::absolute(directory);
      run.run_id = identity.run_id;
      run.rank = identity.rank;
      run.world_size = identity.world_size;
      run.restart = restart;
      run.eps = eps;
      return run;
    }
    if (errno != EEXIST) throw file_error(errno, "cannot create", directory);
  }
  throw std::runtime_error("[out] " + own.string() + " holds 10,000 restarts already");
}

RunInfo given_directory(const fs::path& directory, const Identity& identity, double eps) {
  make_directories(directory);
  // A part of the run before this one keeps its account.
  for (const char* name : {"run", "health"}) {
    const fs::path path = directory / (std::string(name) + ".json");
    std::error_code error;
    for (int part = 1; fs::exists(path, error) && part <= kMaxRestart; ++part) {
      const fs::path kept = directory / (std::string(name) + "." + std::to_string(part) + ".json");
      if (!fs::exists(kept, error)) fs::rename(path, kept, error);
    }
  }
  RunInfo run;
  run.directory = fs::absolute(directory);
  run.run_id = identity.run_id;
  run.rank = identity.rank;
  run.world_size = identity.world_size;
  run.eps = eps;
  return run;
}

std::string run_json(const RunInfo& run, const Identity& identity, const std::string& config_json,
                     const std::string& started, const RunDescription& facts) {
  json value;
  value["trainmon"] = kVersion;
  value["run_id"] = run.run_id;
  value["rank"] = run.rank;
  value["world_size"] = run.world_size;
  value["restart"] = run.restart;
  value["restart_count"] = identity.restart_count;
  value["started"] = started;
  value["host"] = host_name();
  value["pid"] = static_cast<std::int64_t>(getpid());
  value["pid_namespace"] = pid_namespace();
  value["model_digest"] = identity.model_digest;
  value["start_steps"] = facts.start_steps;
  value["covered"] = facts.covered;
  value["not_covered"] = facts.not_covered;
  value["config"] = json::parse(config_json);
  value["environment"] =
      identity.environment.empty() ? json::object() : json::parse(identity.environment);
  json notes = json::object();
  for (const auto& [key, text] : facts.notes) notes[key] = json::parse(text, nullptr, false);
  value["notes"] = notes;
  return dump(value);
}

std::string health_json(const Health& health, bool closed) {
  json value;
  value["rows_produced"] = health.rows_produced;
  value["rows_pending"] = health.rows_pending;
  value["sinks"] = json::array();
  for (const SinkHealth& sink : health.sinks) value["sinks"].push_back(health_of_sink(sink));
  value["refused"] = health.refused;
  value["parts_off"] = health.parts_off;
  value["errors"] = health.errors;
  value["alerts"] = health.alerts;
  value["queue_bytes_peak"] = health.queue_bytes_peak;
  value["closed"] = closed;
  value["updated"] = utc_now();
  return dump(value);
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  const std::size_t length = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return {text, length};
}

}  // namespace trainmon
