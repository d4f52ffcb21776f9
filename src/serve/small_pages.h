// Pages without a script: the list of runs, and what stands in the place of a page that is not made
// yet. They load themselves again, and have a link to themselves in the other language.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "serve/followed_run.h"

namespace trainmon::serve {

enum class Language : std::uint8_t { english, chinese };
inline constexpr std::size_t kLanguages = 2;
// What a query chooses ("?zh", "?en"), or else the first language of an Accept-Language, as the
// page of a run has it.
Language language_of(std::string_view query, std::string_view accept_language);

struct ListedRun {
  std::string name;  // of its directory
  RunState state = RunState::open;
  std::int64_t time_ns = 0;  // of the last write
  std::int64_t ranks = 0;
};

inline constexpr std::size_t kMostListed = 1000;

// What `query` is: the language was chosen, and links to runs keep it.
struct SmallPage {
  Language language = Language::english;
  bool is_chosen = false;
  std::string nonce;  // of its style sheet
};

// The newest first.
std::string list_page(const std::filesystem::path& parent, std::vector<ListedRun> runs,
                      const SmallPage& page);
// `error`: why there is no page; "" while it is made.
std::string waiting_page(const std::string& name, const std::string& error, const SmallPage& page);

}  // namespace trainmon::serve
