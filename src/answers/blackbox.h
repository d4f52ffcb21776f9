// Where each rank was when it ended, and which collective it hangs in: out of flight recorders.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/process.h"
#include "trainmon/read.h"

namespace trainmon {

// A call of a collective that a rank has entered.
struct FlightCall {
  std::string operation;
  std::string group;         // its name
  std::string group_text;    // its name, a zero and its ranks, as the recorder says them
  std::uint64_t number = 0;  // in its group on this rank, from 1
  std::int64_t bytes = 0;
  bool waits = false;              // in wait() of one issued before
  bool is_point_to_point = false;  // its number means nothing to other ranks
  std::int64_t since_ns = 0;
};

struct FlightRank {
  int rank = 0;
  int restart = 0;
  std::filesystem::path file;
  bool closed = false;  // monitoring was stopped in order
  Alive alive = Alive::unknown;
  bool is_suspended = false;         // it lives, and a signal or a debugger holds it
  std::int64_t last_ns = 0;          // of the last event
  std::int64_t seen_ns = 0;          // when it was known to live
  std::optional<std::int64_t> step;  // the last that it reached
  std::string place;                 // "in the forward", ...
  std::vector<FlightCall> inside;    // calls entered and not left, in this order
  std::optional<FlightCall> last;    // the call entered last
  std::uint64_t events = 0, overwritten = 0, unfinished = 0, damaged = 0, names_lost = 0;
};

// How long a rank is in a call; 0 where its times cannot be.
std::int64_t waited_ns(const FlightRank& rank, const FlightCall& call);

// A collective that ranks are inside of.
struct StuckCollective {
  std::string group;
  std::uint64_t number = 0;
  std::map<std::string, std::vector<int>> inside;  // operation -> ranks; two of them disagree
  std::vector<int> absent;                         // ranks of the group that have not entered it
  std::vector<int> unknown;    // ranks of the group whose recorder does not tell
  std::int64_t waited_ns = 0;  // the longest of those inside
  bool is_over = false;        // none of those inside is known to live
};

struct BlackBox {
  std::vector<FlightRank> ranks;       // by rank
  std::vector<StuckCollective> stuck;  // those with absent ranks first, then the longest wait
  std::vector<int> without;            // ranks below the world size that left no recorder
  std::vector<Damage> damage;  // also collectives that are left out, as they name too many ranks
};

// Of the newest restart of each rank. Throws std::runtime_error when no rank has a recorder, and
// what rank_directories() throws.
BlackBox read_black_box(const std::filesystem::path& run);

// Copies the recorders of the newest restarts to RUN/frozen_0001, or the next free number. All of
// it is there or nothing; read_black_box() reads it as a run. Its path. Throws std::runtime_error,
// also where one is a link, and SinkError.
std::filesystem::path freeze_black_box(const std::filesystem::path& run);

}  // namespace trainmon
