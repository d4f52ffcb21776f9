// Claims by mkdir: it is atomic on every file system we know, network ones included.
#include "pipe/run_directory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <thread>

#include "base/file.h"
#include "base/folder.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/process.h"
#include "base/restart_folder.h"
#include "base/text.h"
#include "pipe/rank_lock.h"
#include "trainmon/version.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;

constexpr int kMostParts = 9999;  // of a run in a directory that was given
constexpr int kMostLiveRuns = 1000;
constexpr std::size_t kLongestId = 200;  // bytes; a file system takes 255, and "-2" may follow
constexpr auto kPatience = std::chrono::seconds(3);  // with a process on its way out

std::string rank_name(int rank) {
  char name[32];
  std::snprintf(name, sizeof name, "rank_%05d", rank);
  return name;
}

// The numbers of the restarts under one rank's directory, the newest first.
std::vector<int> restarts_in(const fs::path& rank_directory) {
  std::vector<int> numbers;
  for (const fs::path& entry : entries_of(rank_directory)) {
    if (const std::optional<int> number = restart_number(entry)) numbers.push_back(*number);
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
    const json run =
        json::parse(read_json_text(rank_directory / restart_name(restart) / "run.json"));
    past.same_launch = !identity.run_id.empty() && run.value("run_id", "") == identity.run_id &&
                       run.value("restart_count", -1) == identity.restart_count;
    past.other_world_size = run.value("world_size", identity.world_size) != identity.world_size;
    past.model_digest = run.value("model_digest", "");
  } catch (const std::exception&) {
  }
  return past;
}

// Says, once per start, who else may change what is recorded. The user's own link to the run is his
// affair; below it, only trainmon makes folders.
void warn_of_others(const fs::path& out, const fs::path& own) {
  struct stat of_run {
  }, of_rank{};
  if (::stat(out.c_str(), &of_run) != 0 || ::lstat(own.c_str(), &of_rank) != 0) return;
  if ((of_run.st_mode & S_IWOTH) != 0 && (of_run.st_mode & S_ISVTX) == 0) {
    char mode[8];
    std::snprintf(mode, sizeof mode, "0%03o", of_run.st_mode & 0777);
    log_warning(out.string() + " has mode " + mode +
                ": anybody may write into it and replace what is recorded");
  }
  if (const std::string link = link_text(own); !link.empty()) {
    log_warning(link);
  } else if (of_rank.st_uid != ::geteuid()) {
    log_warning(own.string() + " belongs to another user (number " +
                std::to_string(of_rank.st_uid) + "), who may replace what is recorded");
  }
}

bool is_restart_of(const LockHolder& holder, const Identity& identity) {
  return !holder.launch.empty() && holder.launch == launch_of(identity) &&
         holder.restart_count != identity.restart_count;
}

// Who else writes to a rank's own folder, after some patience; nobody: `lock` is taken. `first`
// is the folder of rank 0, which is looked at, too, where a launch may have more processes than
// the one that is there. Else it is empty.
std::optional<LockHolder> occupant(const fs::path& own, const fs::path& first,
                                   const Identity& identity, std::shared_ptr<void>& lock) {
  make_directories(own);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (true) {
    std::optional<LockHolder> other;
    if (!first.empty()) {
      other = other_holder(first);
      const std::string launch = launch_of(identity);
      if (other && (launch.empty() || other->launch.empty() || other->launch == launch)) {
        other.reset();
      }
    }
    if (!other) {
      lock = lock_rank(own, identity);
      if (lock != nullptr) return std::nullopt;
      other = other_holder(own);
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      // It may be stuck on its way out, and the launcher wants the run to go on.
      if (other && is_restart_of(*other, identity)) other.reset();
      return other;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

std::string said_of(const LockHolder& other) {
  return "process " + std::to_string(other.pid) + " on " + other.host + " (since " + other.started +
         ") is still writing ";
}

using Members = std::vector<std::pair<std::string, std::string>>;

std::string truth(bool value) {
  return value ? "true" : "false";
}

std::string text_of(const std::string& text) {
  return json_string(text);
}
std::string text_of(std::int64_t number) {
  return std::to_string(number);
}

template <typename Values>
std::string list_of(const Values& values) {
  std::vector<std::string> texts;
  for (const auto& value : values) texts.push_back(text_of(value));
  return json_list(texts);
}

template <typename Map>
std::string object_of(const Map& map) {
  Members members;
  for (const auto& [key, value] : map) members.emplace_back(key, text_of(value));
  return json_object(members);
}

std::string health_of_sink(const SinkHealth& sink) {
  return json_object(Members{{"name", json_string(sink.name)},
                             {"rows_written", text_of(sink.rows_written)},
                             {"batches_written", text_of(sink.batches_written)},
                             {"rows_dropped", object_of(sink.rows_dropped)},
                             {"degraded", truth(sink.degraded)}});
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
  name.resize(std::min(name.size(), kLongestId));
  return fs::path("trainmon_runs") / name;
}

RunInfo claim_directory(const fs::path& out, const Identity& identity, double eps) {
  const fs::path own = out / rank_name(identity.rank);
  make_directories(own);
  warn_of_others(out, own);
  const std::vector<int> own_past = restarts_in(own);
  int restart = 0;
  if (!own_past.empty()) {
    restart = own_past.front() + 1;
    // Only with its own past: the stages of a pipeline are different models on different ranks.
    const std::string digest = past_of(own, own_past.front(), identity).model_digest;
    if (!digest.empty() && !identity.model_digest.empty() && digest != identity.model_digest) {
      throw std::runtime_error(
          "[out] " + out.string() +
          " holds the run of another model (names or shapes differ); give this run its "
          "own directory with out=...");
    }
  }
  if (identity.rank != 0) {
    const fs::path first = out / rank_name(0);
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
    const fs::path directory = own / restart_name(restart);
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
  throw std::runtime_error("[out] " + own.string() + " has no number left for another restart");
}

RunInfo claim_run(const std::string& out, const Identity& identity, double eps,
                  std::shared_ptr<void>& lock) {
  const fs::path first = default_out(out, identity.run_id);
  for (int number = 1; number <= kMostLiveRuns; ++number) {
    const fs::path run(number == 1 ? first.string()
                                   : first.string() + "-" + std::to_string(number));
    const fs::path of_first = identity.rank == 0 ? fs::path() : run / rank_name(0);
    const fs::path own = run / rank_name(identity.rank);
    if (is_locked_here(own)) {
      log_warning("another monitor of this process still writes to " + run.string() +
                  ": both record, as two starts of one run; stop() that one first");
    }
    const std::optional<LockHolder> other = occupant(own, of_first, identity, lock);
    if (!other) return claim_directory(run, identity, eps);
    if (!out.empty()) {
      throw std::runtime_error("[out] " + out + ": " + said_of(*other) +
                               "a run there; wait for it, or give this run its own directory "
                               "with out=...");
    }
    if (identity.rank == 0) {
      log_line(run.string() + " is in use: " + said_of(*other) + "there; looking for another");
    }
  }
  throw std::runtime_error("[out] " + first.string() + " and the directories after it are in use");
}

RunInfo given_directory(const fs::path& directory, const Identity& identity, double eps,
                        std::shared_ptr<void>& lock) {
  if (const std::optional<LockHolder> other = occupant(directory, {}, identity, lock)) {
    throw std::runtime_error(directory.string() + ": " + said_of(*other) +
                             "there; wait for it, or give this run another directory");
  }
  // A part of the run before this one keeps its account.
  for (const char* name : {"run", "health"}) {
    const fs::path path = directory / (std::string(name) + ".json");
    std::error_code error;
    for (int part = 1; fs::exists(path, error) && part <= kMostParts; ++part) {
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

bool start_lives(const fs::path& directory) {
  const auto said_in = [&](const char* file) {
    try {
      return json::parse(read_json_text(directory / file));
    } catch (const std::exception&) {  // just begun, or damaged
      return json::object();
    }
  };
  try {
    if (said_in("health.json").value("closed", false)) return false;
    const json run = said_in("run.json");
    return is_alive({run.value("host", ""), run.value("pid_namespace", ""),
                     run.value("pid", std::int64_t{0}), run.value("started", ""),
                     run.value("boot", ""), run.value("ticks", "")}) == Alive::yes;
  } catch (const json::exception&) {
    return false;
  }
}

std::string run_json(const RunInfo& run, const Identity& identity, const std::string& config_json,
                     const std::string& started, const RunDescription& facts) {
  Members notes;
  for (const auto& [key, text] : facts.notes) notes.emplace_back(key, text);
  return json_object(Members{
             {"trainmon", json_string(kVersion)},
             {"run_id", json_string(run.run_id)},
             {"rank", text_of(run.rank)},
             {"world_size", text_of(run.world_size)},
             {"restart", text_of(run.restart)},
             {"restart_count", text_of(identity.restart_count)},
             {"started", json_string(started)},
             {"host", json_string(host_name())},
             {"pid", text_of(getpid())},
             {"pid_namespace", json_string(pid_namespace())},
             {"boot", json_string(boot_id())},
             {"ticks", json_string(start_ticks(getpid()))},
             {"model_digest", json_string(identity.model_digest)},
             {"start_steps", list_of(facts.start_steps)},
             {"covered", list_of(facts.covered)},
             {"not_covered", object_of(facts.not_covered)},
             {"config", config_json.substr(0, config_json.find_last_not_of('\n') + 1)},
             {"environment", json::accept(identity.environment) ? identity.environment : "{}"},
             {"notes", json_object(notes)}}) +
         "\n";
}

std::string health_json(const Health& health, bool closed) {
  std::vector<std::string> sinks;
  for (const SinkHealth& sink : health.sinks) sinks.push_back(health_of_sink(sink));
  return json_object(Members{{"rows_produced", text_of(health.rows_produced)},
                             {"rows_pending", text_of(health.rows_pending)},
                             {"sinks", json_list(sinks)},
                             {"refused", object_of(health.refused)},
                             {"scalars_dropped", object_of(health.scalars_dropped)},
                             {"parts_off", object_of(health.parts_off)},
                             {"errors", text_of(health.errors)},
                             {"alerts", text_of(health.alerts)},
                             {"queue_bytes", text_of(health.queue_bytes)},
                             {"queue_bytes_peak", text_of(health.queue_bytes_peak)},
                             {"queue_seconds", number_text(health.queue_seconds)},
                             {"closed", truth(closed)},
                             {"updated", json_string(utc_now())}}) +
         "\n";
}

}  // namespace trainmon
