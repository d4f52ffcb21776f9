#include "serve/small_pages.h"

#include <algorithm>

#include "base/process.h"
#include "base/text.h"
#include "report/encoding.h"
#include "serve/gate.h"

namespace trainmon::serve {
namespace {

using page::html_text;

constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark; font: 15px/1.5 system-ui, "Noto Sans", sans-serif; }
body { max-width: 960px; margin: 20px auto; padding: 0 20px; }
h1 { font-size: 22px; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: 4px 16px 4px 0; vertical-align: top; }
td:first-child { overflow-wrap: anywhere; }
)";

// Loads itself again after so many seconds.
std::string small_page(const std::string& title, int seconds, const std::string& nonce,
                       const std::string& content) {
  return "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta name=\"viewport\" content=\"width=device-width\">\n"
         "<link rel=\"icon\" href=\"data:,\">\n<meta http-equiv=\"refresh\" content=\"" +
         std::to_string(seconds) + "\">\n<title>" + html_text(title) +
         " · trainmon</title>\n<style nonce=\"" + nonce + "\">" + std::string(kStyle) +
         "</style>\n</head>\n<body>\n" + content + "</body>\n</html>\n";
}

std::string_view words_of(RunState state) {
  switch (state) {
    case RunState::closed:
      return "has ended";
    case RunState::gone:
      return "is gone, and did not stop in order";
    case RunState::deleted:
      return "is not there any more";
    default:
      return "goes on, as far as can be told";
  }
}

}  // namespace

std::string list_page(const std::filesystem::path& parent, std::vector<ListedRun> runs,
                      const std::string& nonce) {
  std::ranges::stable_sort(runs, std::greater<>(), &ListedRun::time_ns);
  std::string content = "<h1>Runs in " + html_text(parent.native()) + "</h1>\n";
  if (runs.empty()) {
    return small_page("no run yet", 3, nonce,
                      content +
                          "<p>There is no run yet. A run has rank_*/restart_* "
                          "directories; this page shows it when it begins.</p>\n");
  }
  content +=
      "<table>\n<tr><th>Run</th><th>Ranks</th><th>Last rows written</th><th>State</th></tr>\n";
  for (std::size_t i = 0; i < std::min(runs.size(), kMostListed); ++i) {
    const ListedRun& one = runs[i];
    content += "<tr><td><a href=\"" + percent_encoded(one.name) + "/\">" + html_text(one.name) +
               "</a></td><td>" + std::to_string(one.ranks) + "</td><td>" +
               (one.time_ns == 0 ? "never" : utc_text(one.time_ns)) + "</td><td>" +
               std::string(words_of(one.state)) + "</td></tr>\n";
  }
  content += "</table>\n";
  if (runs.size() > kMostListed) {
    const auto others = static_cast<std::int64_t>(runs.size() - kMostListed);
    content += "<p>" + grouped(others) + " older runs are not listed.</p>\n";
  }
  return small_page("runs", 3, nonce, content);
}

std::string waiting_page(const std::string& name, const std::string& error,
                         const std::string& nonce) {
  const std::string said =
      error.empty() ? "The run is being read." : "The page could not be made: " + html_text(error);
  return small_page(name, error.empty() ? 1 : 5, nonce,
                    "<h1>" + html_text(name) + "</h1>\n<p>" + said + "</p>\n");
}

}  // namespace trainmon::serve
