// Reads the file whole when its stamp has changed, has changed lately, or what it held was wrong.
#include "monitor/control_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "base/file.h"

namespace trainmon {
namespace {

constexpr std::int64_t kMaxBytes = std::int64_t{1} << 20;
// Stamps are coarse, on some file systems by two seconds: another version may come with the same.
constexpr auto kCoarse = std::chrono::seconds(3);

std::string joined(const std::vector<std::string>& faults) {
  std::string text;
  for (const std::string& fault : faults) text += (text.empty() ? "" : "; ") + fault;
  return text;
}

}  // namespace

ControlFile::ControlFile(std::filesystem::path path, const Config& config)
    : path_(std::move(path)), config_(config) {}

// The content; nullopt for none, or with why it cannot be read.
std::optional<std::string> ControlFile::read(Clock::time_point now, std::string& unreadable) {
  struct stat status {};
  if (::stat(path_.c_str(), &status) != 0) {
    const bool is_missing = errno == ENOENT || errno == ENOTDIR;
    if (!is_missing) unreadable = file_error(errno, "cannot read", path_).what();
    stamp_ = {};
    return std::nullopt;
  }
  const Stamp stamp{status.st_ino, status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
  if (stamp != stamp_) {
    stamp_ = stamp;
    again_until_ = now + kCoarse;
  } else if (is_fine_ && now >= again_until_) {
    return std::nullopt;
  }
  if (!S_ISREG(status.st_mode)) {  // reading a pipe would wait
    unreadable = path_.string() + " is not a regular file";
    return std::nullopt;
  }
  try {
    return read_file(path_, kMaxBytes);
  } catch (const SinkError& error) {
    const bool is_gone = error.reason() == errno_reason(ENOENT);
    if (!is_gone) unreadable = error.what();
    stamp_ = {};
    return std::nullopt;
  }
}

std::optional<ControlFile::Found> ControlFile::look(Clock::time_point now) {
  std::string fault;
  std::optional<std::string> text = read(now, fault);
  if (!text && fault.empty()) {
    if (is_fine_) return std::nullopt;
    is_fine_ = true;  // what was wrong is gone
    seen_.clear();
    return Found{};
  }
  if (!text) text = std::string(1, '\0') + fault;  // no JSON begins so
  if (*text == seen_) return std::nullopt;
  seen_ = *text;
  Found found;
  if (fault.empty()) {
    try {
      Control control = control_from_json(*text);
      Config config = with_control(config_, control);
      found.change = ControlChange{std::move(control), std::move(config)};
    } catch (const ConfigError& error) {
      fault = joined(error.faults());
    }
  }
  is_fine_ = fault.empty();
  found.fault = std::move(fault);
  if (found.change) {
    std::string good = control_to_json(found.change->control);
    if (good == good_) found.change.reset();  // a fault is gone, or only spaces have changed
    good_ = std::move(good);
  }
  return found;
}

}  // namespace trainmon
