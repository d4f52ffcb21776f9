#include "collect/name_limits.h"

#include "base/log.h"
#include "base/md5.h"
#include "base/text.h"
#include "model/own_scalars.h"

namespace trainmon {
namespace {

// Trainmon's own count beside those of the user, or the last of them could be missing.
constexpr std::size_t kShownOfName = 80;

std::string shown(std::string_view name) {
  return std::string(name.substr(0, kShownOfName)) + (name.size() > kShownOfName ? "..." : "");
}

}  // namespace

std::string bounded_name(std::string_view name) {
  if (name.size() <= kLongestName) return std::string(name);
  Md5 digest;
  digest.add(name);
  const std::string end = "..." + digest.finish();
  std::size_t kept = kLongestName - end.size();
  while (kept > 0 && (static_cast<unsigned char>(name[kept]) & 0xC0) == 0x80) --kept;
  static std::atomic<bool> is_said{false};
  if (!is_said.exchange(true)) {
    log_line("a name of " + grouped(static_cast<std::int64_t>(name.size())) + " bytes, \"" +
             shown(name) + "\", is cut: names have at most " +
             grouped(static_cast<std::int64_t>(kLongestName)) +
             " bytes, and the MD5 of a longer one stands at its end");
  }
  return std::string(name.substr(0, kept)) + end;
}

bool ScalarNames::takes(std::string_view name) {
  for (const std::string_view own : kOwnScalars) {
    if (name == own) return true;
  }
  {
    const std::lock_guard lock(mutex_);
    if (names_.contains(name)) return true;
    if (names_.size() < most_) {
      names_.emplace(name);
      return true;
    }
  }
  if (left_out_.fetch_add(1, std::memory_order_relaxed) > 0) return false;
  log_line("\"" + shown(name) +
           "\" would be one name more than max_scalars = " + std::to_string(most_) +
           " allows: values of further names are counted in health.json, and not recorded");
  return false;
}

}  // namespace trainmon
