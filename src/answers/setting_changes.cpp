#include "answers/setting_changes.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "base/text.h"

namespace trainmon {
namespace {

std::string value_text(const DeclaredValue& value) {
  using Type = DeclaredValue::Type;
  if (value.type == Type::number) return number_text(value.number, 6);
  return value.type == Type::text ? printable(value.text) : "a value that is not known";
}

struct Setting {
  std::string holds;  // since the last change, of this restart or, before it says so, an older one
  bool is_own = false;
  std::string before;  // the first of the changes that are told
  std::int64_t first = 0, last = 0;
  std::int64_t changes = 0;

  std::string text() const {
    std::string when = "at step " + std::to_string(last);
    if (changes > 1) {
      when = "in steps " + std::to_string(first) + " to " + std::to_string(last);
    }
    return " changed from " + before + " to " + holds + " " + when;
  }
};

}  // namespace

std::vector<std::string> setting_changes(const std::vector<ReadDeclared>& declared,
                                         std::int32_t restart, std::int32_t rank,
                                         std::int64_t step) {
  std::map<std::tuple<std::int32_t, std::string, std::int32_t>, Setting> settings;
  std::optional<std::int32_t> of_rank;
  if (rank >= 0) of_rank = rank;
  for (const ReadDeclared& one : declared) {
    if (one.restart > restart || one.step > step) continue;
    if (!of_rank) of_rank = one.rank;
    if (one.rank != *of_rank) continue;
    const bool is_own = one.restart == restart;
    const auto [known, is_new] =
        settings.try_emplace({one.optimizer, one.value.name, one.group}, Setting());
    Setting& setting = known->second;
    if (setting.is_own && !is_own) continue;
    const std::string value = value_text(one.value);
    if (is_own && !is_new && value != setting.holds && one.step >= step - kStepsBefore) {
      if (setting.changes++ == 0) {
        setting.before = setting.holds;
        setting.first = one.step;
      }
      setting.last = one.step;
    }
    setting.holds = value;
    setting.is_own = is_own;
  }
  std::map<std::tuple<std::int32_t, std::string, std::string>, std::vector<int>> groups;
  for (const auto& [key, setting] : settings) {
    const auto& [optimizer, name, group] = key;
    if (setting.changes == 0 || setting.before == setting.holds) continue;
    groups[{optimizer, name, setting.text()}].push_back(group);
  }
  std::vector<std::string> sentences;
  for (const auto& [key, of] : groups) {
    const auto& [optimizer, name, text] = key;
    std::string where = (of.size() == 1 ? " of group " : " of groups ") + ranks_text(of);
    if (optimizer != 0) where += ", optimizer " + std::to_string(optimizer) + ",";
    sentences.push_back(printable(name) + where + text);
  }
  return sentences;
}

std::vector<std::string> setting_changes(const std::vector<ReadDeclared>& declared,
                                         std::int32_t restart,
                                         const std::vector<std::int32_t>& ranks,
                                         std::int64_t step) {
  if (ranks.empty()) return setting_changes(declared, restart, -1, step);
  std::vector<std::pair<std::string, std::vector<std::int32_t>>> said;  // by whom
  for (const std::int32_t rank : ranks) {
    for (std::string& text : setting_changes(declared, restart, rank, step)) {
      const auto known = std::ranges::find(said, text, [](const auto& one) { return one.first; });
      if (known == said.end()) {
        said.push_back({std::move(text), {rank}});
      } else {
        known->second.push_back(rank);
      }
    }
  }
  std::vector<std::string> texts;
  for (auto& [text, by] : said) {
    const std::string who = by.size() == 1 ? "rank " : "ranks ";
    texts.push_back(by.size() == ranks.size() ? text : who + ranks_text(by) + ": " + text);
  }
  return texts;
}

}  // namespace trainmon
