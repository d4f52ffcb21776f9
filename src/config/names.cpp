// Groups of kinds, and name patterns.
#include <algorithm>

#include "config/key_table.h"
#include "model/kinds.h"
#include "trainmon/config.h"

namespace trainmon {
namespace {

using std::string_view;

std::vector<string_view> components(string_view text) {
  std::vector<string_view> parts;
  if (text.empty()) return parts;  // the root module
  std::size_t begin = 0;
  while (true) {
    const std::size_t end = text.find('.', begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == string_view::npos) return parts;
    begin = end + 1;
  }
}

// Glob with "*" only. Greedy with one point of return, so linear times linear at worst.
bool component_matches(string_view pattern, string_view text) {
  std::size_t p = 0, t = 0, star = string_view::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

// Does the pattern take the first components of the name? The same walk as within a component,
// with "**" in the part of "*".
bool takes(string_view pattern, const std::vector<string_view>& name) {
  if (pattern == "(root)") return name.empty();
  const std::vector<string_view> parts = components(pattern);
  constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  std::size_t p = 0, n = 0, star = kNone, resume = 0;
  while (p < parts.size()) {
    if (parts[p] == "**") {
      star = p++;
      resume = n;
    } else if (n < name.size() && component_matches(parts[p], name[n])) {
      ++p;
      ++n;
    } else if (star != kNone && resume < name.size()) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace

std::vector<std::string> expand_kinds(const std::vector<std::string>& kinds) {
  const Key& key = *find_key("kinds");
  std::vector<std::string> faults;
  for (const std::string& name : kinds) {
    if (std::find(key.choices.begin(), key.choices.end(), name) == key.choices.end()) {
      faults.push_back("unknown kind \"" + name + "\": must be " + element_expectation(key) +
                       choice_hint(key, name));
    }
  }
  if (!faults.empty()) throw ConfigError(std::move(faults));
  std::vector<std::string> expanded;
  for (const Kind& kind : kind_table()) {
    const bool wanted = std::any_of(kinds.begin(), kinds.end(), [&](const std::string& name) {
      return name == kind.name || name == kind.group || (name == kAllKinds && kind.in_all);
    });
    if (wanted) expanded.emplace_back(kind.name);
  }
  return expanded;
}

bool name_selected(string_view name, const std::vector<std::string>& include,
                   const std::vector<std::string>& exclude) {
  const std::vector<string_view> parts = components(name);
  const auto taken_by = [&](const std::vector<std::string>& patterns) {
    return std::any_of(patterns.begin(), patterns.end(),
                       [&](const std::string& pattern) { return takes(pattern, parts); });
  };
  return (include.empty() || taken_by(include)) && !taken_by(exclude);
}

}  // namespace trainmon
