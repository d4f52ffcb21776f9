#include "answers/common_modules.h"

#include <algorithm>
#include <cstddef>

namespace trainmon {
namespace {

bool is_number(const std::string& module) {
  return !module.empty() && module.find_first_not_of("0123456789") == std::string::npos;
}

}  // namespace

std::vector<std::string> modules_of(std::string_view name) {
  std::vector<std::string> modules;
  for (auto end = name.find('.'); end != std::string_view::npos; end = name.find('.')) {
    modules.emplace_back(name.substr(0, end));
    name.remove_prefix(end + 1);
  }
  return modules;
}

void keep_common(std::vector<std::string>& modules, const std::vector<std::string>& others) {
  std::size_t kept = 0;
  for (; kept < std::min(modules.size(), others.size()); ++kept) {
    std::string& one = modules[kept];
    if (one == others[kept]) continue;
    if (!(one == "*" || is_number(one)) || !is_number(others[kept])) break;
    one = "*";
  }
  modules.resize(kept);
}

std::string module_text(std::vector<std::string> modules) {
  while (!modules.empty() && modules.back() == "*") modules.pop_back();
  std::string text;
  for (const std::string& one : modules) text += (text.empty() ? "" : ".") + one;
  return text;
}

}  // namespace trainmon
