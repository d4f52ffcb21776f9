// Four digits at least, and no more zeros in front than they need.
#include "base/restart_folder.h"

#include <cstdio>
#include <string_view>
#include <system_error>

namespace trainmon {
namespace {

constexpr std::string_view kPrefix = "restart_";
constexpr int kSurelyOurs = 9999;

}  // namespace

std::string restart_name(int number) {
  char name[32];
  std::snprintf(name, sizeof name, "restart_%04d", number);
  return name;
}

std::optional<int> restart_number(const std::filesystem::path& folder) {
  const std::string name = folder.filename().string();
  const std::string_view digits =
      std::string_view(name).substr(name.starts_with(kPrefix) ? kPrefix.size() : name.size());
  if (digits.empty() || digits.size() > 9) return std::nullopt;
  int number = 0;
  for (const char digit : digits) {
    if (digit < '0' || digit > '9') return std::nullopt;
    number = number * 10 + (digit - '0');
  }
  if (name != restart_name(number)) return std::nullopt;
  std::error_code unknown;
  if (number > kSurelyOurs && !std::filesystem::exists(folder / "run.json", unknown) && !unknown) {
    return std::nullopt;
  }
  return number;
}

}  // namespace trainmon
