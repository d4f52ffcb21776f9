#include "serve/small_pages.h"

#include <algorithm>
#include <array>

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
#language { float: right; padding-left: 16px; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: 4px 16px 4px 0; vertical-align: top; }
td:first-child { overflow-wrap: anywhere; }
)";

// In English and Chinese.
using Words = std::array<std::string_view, kLanguages>;
constexpr Words kCode = {"en", "zh"};
constexpr Words kOther = {"中文", "English"};
constexpr Words kRunsIn = {"Runs in %1", "%1 中的运行"};
constexpr Words kRuns = {"runs", "运行"};
constexpr Words kNoRun = {"no run yet", "还没有运行"};
constexpr Words kNoRunYet = {
    "There is no run yet. A run has rank_*/restart_* directories; this page shows it when it "
    "begins.",
    "还没有运行。运行的目录里有 rank_*/restart_* 子目录；运行开始后，本页会显示它。"};
constexpr std::array<Words, 4> kHead = {
    {{"Run", "运行"}, {"Ranks", "rank 数"}, {"Last rows written", "最近写入"}, {"State", "状态"}}};
constexpr Words kNever = {"never", "从未"};
constexpr Words kOthers = {"%1 older runs are not listed.", "另有 %1 个更早的运行未列出。"};
constexpr Words kIsRead = {"The run is being read.", "正在读取该运行。"};
constexpr Words kFailed = {"The page could not be made: %1", "无法生成页面：%1"};

const Words& words_of(RunState state) {
  static constexpr Words kOpen = {"goes on, as far as can be told", "就目前所知仍在进行"};
  static constexpr Words kClosed = {"has ended", "已结束"};
  static constexpr Words kGone = {"is gone, and did not stop in order",
                                  "进程已不在，且没有正常停止"};
  static constexpr Words kDeleted = {"is not there any more", "已不存在"};
  switch (state) {
    case RunState::closed:
      return kClosed;
    case RunState::gone:
      return kGone;
    case RunState::deleted:
      return kDeleted;
    default:
      return kOpen;
  }
}

std::string said(const Words& words, Language language, const std::string& given = "") {
  std::string text(words[static_cast<std::size_t>(language)]);
  const std::size_t at = text.find("%1");
  return at == std::string::npos ? text : text.replace(at, 2, given);
}

std::string query_of(Language language) {
  return "?" + said(kCode, language);
}

// Loads itself again after so many seconds.
std::string small_page(const std::string& title, int seconds, const SmallPage& page,
                       const std::string& content) {
  const Language other = page.language == Language::english ? Language::chinese : Language::english;
  return "<!doctype html>\n<html lang=\"" + said(kCode, page.language) +
         "\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta name=\"viewport\" content=\"width=device-width\">\n"
         "<link rel=\"icon\" href=\"data:,\">\n<meta http-equiv=\"refresh\" content=\"" +
         std::to_string(seconds) + "\">\n<title>" + html_text(title) +
         " · trainmon</title>\n<style nonce=\"" + page.nonce + "\">" + std::string(kStyle) +
         "</style>\n</head>\n<body>\n<a id=\"language\" lang=\"" + said(kCode, other) +
         "\" href=\"" + query_of(other) + "\">" + said(kOther, page.language) + "</a>\n" + content +
         "</body>\n</html>\n";
}

}  // namespace

Language language_of(std::string_view query, std::string_view accept_language) {
  if (query == "zh") return Language::chinese;
  if (query == "en") return Language::english;
  const std::string_view first = accept_language.substr(0, 2);
  const bool is_chinese = first == "zh" || first == "ZH" || first == "Zh";
  return is_chinese ? Language::chinese : Language::english;
}

std::string list_page(const std::filesystem::path& parent, std::vector<ListedRun> runs,
                      const SmallPage& page) {
  const auto say = [&](const Words& words, const std::string& given = "") {
    return said(words, page.language, given);
  };
  std::ranges::stable_sort(runs, std::greater<>(), &ListedRun::time_ns);
  std::string content = "<h1>" + say(kRunsIn, html_text(parent.native())) + "</h1>\n";
  if (runs.empty()) {
    return small_page(say(kNoRun), 3, page, content + "<p>" + say(kNoRunYet) + "</p>\n");
  }
  content += "<table>\n<tr>";
  for (const Words& one : kHead) content += "<th>" + say(one) + "</th>";
  content += "</tr>\n";
  const std::string query = page.is_chosen ? query_of(page.language) : "";
  for (std::size_t i = 0; i < std::min(runs.size(), kMostListed); ++i) {
    const ListedRun& one = runs[i];
    content += "<tr><td><a href=\"" + percent_encoded(one.name) + "/" + query + "\">" +
               html_text(one.name) + "</a></td><td>" + std::to_string(one.ranks) + "</td><td>" +
               (one.time_ns == 0 ? say(kNever) : utc_text(one.time_ns)) + "</td><td>" +
               say(words_of(one.state)) + "</td></tr>\n";
  }
  content += "</table>\n";
  if (runs.size() > kMostListed) {
    const auto others = static_cast<std::int64_t>(runs.size() - kMostListed);
    content += "<p>" + say(kOthers, grouped(others)) + "</p>\n";
  }
  return small_page(say(kRuns), 3, page, content);
}

std::string waiting_page(const std::string& name, const std::string& error, const SmallPage& page) {
  const std::string text =
      error.empty() ? said(kIsRead, page.language) : said(kFailed, page.language, html_text(error));
  return small_page(name, error.empty() ? 1 : 5, page,
                    "<h1>" + html_text(name) + "</h1>\n<p>" + text + "</p>\n");
}

}  // namespace trainmon::serve
