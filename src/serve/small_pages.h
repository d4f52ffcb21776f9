// Pages without a script: the list of runs, and what stands in the place of a page that is not made
// yet. They load themselves again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "serve/followed_run.h"

namespace trainmon::serve {

struct ListedRun {
  std::string name;  // of its directory
  RunState state = RunState::open;
  std::int64_t time_ns = 0;  // of the last write
  std::int64_t ranks = 0;
};

inline constexpr std::size_t kMostListed = 1000;

// The newest first. `nonce` is that of its style sheet.
std::string list_page(const std::filesystem::path& parent, std::vector<ListedRun> runs,
                      const std::string& nonce);
// `error`: why there is no page; "" while it is made.
std::string waiting_page(const std::string& name, const std::string& error,
                         const std::string& nonce);

}  // namespace trainmon::serve
