// One run that is looked at while it grows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "answers/tail.h"

namespace trainmon::serve {

// What the files of a run say without being read.
struct Extent {
  std::string signature;     // differs when a log or a run.json does
  std::string origin;        // differs when another run has the same name
  std::int64_t time_ns = 0;  // when a log was written last, since 1970; 0: there is none
  std::int64_t ranks = 0;
};
// Throws as rank_directories().
Extent extent_of(const std::filesystem::path& run);

enum class RunState : std::uint8_t { open, closed, gone, deleted };
std::string_view state_name(RunState state);
// Not stopped in order but gone, or open: also where that cannot be told from here.
RunState state_of(const std::filesystem::path& run);

// What is known of a run without a page.
struct Seen {
  RunState state = RunState::open;
  Extent extent;
  std::string signature;           // of the files and the state
  std::optional<TailStep> newest;  // step
  std::string error;               // why there is no newer one; "": nothing failed
};
// JSON; docs/report.md has the members. `page` is the digest of a page, "" for none; `error` says
// why there is no newer one.
std::string state_json(const Seen& seen, const std::string& page, const std::string& error);

// One thread. Only reads. Memory is bounded by what RunTail needs.
class FollowedRun {
 public:
  explicit FollowedRun(std::filesystem::path run);

  // Reads what is new, each byte once. Never throws: that a run was deleted or cannot be read is
  // seen, too.
  const Seen& look();

 private:
  void follow();

  const std::filesystem::path run_;
  Seen seen_;
  std::optional<RunTail> tail_;
};

}  // namespace trainmon::serve
