// The directory of one rank and restart: claimed by exactly one process, with run.json and
// health.json kept up to date in it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "trainmon/health.h"
#include "trainmon/identity.h"
#include "trainmon/sink.h"

namespace trainmon {

// "trainmon_runs/<run id or local>" when `out` is empty; an id that is not a plain file name has
// its other characters replaced by "_". Of a longer one the first 200 bytes count.
std::filesystem::path default_out(const std::string& out, const std::string& run_id);

// Makes and claims RUN/rank_00003/restart_0000 with an exclusive mkdir, so that no two processes
// ever share it: taken numbers are passed over. The number is the one other ranks of the same
// launch (run id and restart count) use. Rank 0 or this rank's own past shows it. Else it is one
// more than this rank's last. Such a number is also beyond rank 0's last in a launch of another
// world size, for a rank that comes in with more processes. Throws std::runtime_error when
// nothing can be made or when this rank's newest run.json there names another model
// (`identity.model_digest`).
RunInfo claim_directory(const std::filesystem::path& out, const Identity& identity, double eps);

// As claim_directory(), in `out` or, where that is empty, in default_out(). `lock` says that this
// process writes there, until it is let go. Where another live process does already: with an `out`
// std::runtime_error that names it, else the next of trainmon_runs/local-2, local-3, ... that is
// free, and a line that says so. A process on its way out gets a few seconds; a restart of the same
// launch goes on after them.
RunInfo claim_run(const std::string& out, const Identity& identity, double eps,
                  std::shared_ptr<void>& lock);

// A directory that the caller chose; made where it is missing. `lock` as in claim_run(): where
// another live process writes there, std::runtime_error that names it. Of earlier parts of the run
// there, run.json and health.json stay as run.1.json, health.1.json, ...
RunInfo given_directory(const std::filesystem::path& directory, const Identity& identity,
                        double eps, std::shared_ptr<void>& lock);

// Whether somebody writes to this folder of a start still: another monitor of this process, or a
// process that the launcher has given up. Of another host nobody knows: false.
bool start_lives(const std::filesystem::path& directory);

// What run.json says beyond identity and config; grows while the run goes on.
struct RunDescription {
  std::vector<std::int64_t> start_steps;
  std::vector<std::string> covered;
  std::map<std::string, std::string> not_covered;
  std::map<std::string, std::string> notes;  // key -> JSON text
};
std::string run_json(const RunInfo& run, const Identity& identity, const std::string& config_json,
                     const std::string& started, const RunDescription& facts);
std::string health_json(const Health& health, bool closed);

}  // namespace trainmon
