// The hook is a plain pointer, so that a forked child can still log whatever other threads held.
#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

#include "base/console.h"
#include "base/text.h"

namespace trainmon {
namespace {

constexpr std::size_t kTopicLimit = 256;

std::atomic<int> console{2};

// A line that cannot be written is lost: nobody waits for a person who does not read.
void write_to_console(std::string_view line) {
  std::string text = "trainmon: ";
  text += line;
  text += '\n';
  write_at_once(console.load(), text);
}

bool console_wants_color() {
  const char* no_color = std::getenv("NO_COLOR");
  return (no_color == nullptr || *no_color == '\0') && ::isatty(console.load()) == 1;
}

std::atomic<LogHook> current_hook{&write_to_console};

struct Topic {
  std::chrono::steady_clock::time_point last;
  long held_back = 0;
};
std::mutex topics_mutex;
std::map<std::string, Topic, std::less<>>& topics() {
  // Never destroyed: the writer thread may log while the process exits.
  static auto* map = new std::map<std::string, Topic, std::less<>>;
  return *map;
}

}  // namespace

void set_console(int descriptor) noexcept {
  console.store(descriptor);
}

LogHook set_log_hook(LogHook hook) noexcept {
  return current_hook.exchange(hook == nullptr ? &write_to_console : hook);
}

void log_line(std::string_view line) noexcept {
  try {
    current_hook.load()(printable(line));
  } catch (...) {
    // Out of memory while reporting: the line is lost, the counters are not.
  }
}

void log_warning(std::string_view line) noexcept {
  try {
    const LogHook hook = current_hook.load();
    std::string text = printable(line);
    if (hook == &write_to_console && console_wants_color()) text = "\x1b[33m" + text + "\x1b[0m";
    hook(text);
  } catch (...) {
  }
}

void log_line_limited(std::string_view topic, std::string_view line, double seconds) noexcept {
  try {
    long held_back = 0;
    {
      // Not waited for: in a forked child the lock may be held for ever.
      const std::unique_lock lock(topics_mutex, std::try_to_lock);
      if (!lock.owns_lock()) return;
      const auto now = std::chrono::steady_clock::now();
      auto& map = topics();
      const bool is_full = map.size() >= kTopicLimit && map.find(topic) == map.end();
      const auto [entry, is_new] = map.try_emplace(is_full ? "" : std::string(topic));
      Topic& state = entry->second;
      if (!is_new && now - state.last < std::chrono::duration<double>(seconds)) {
        ++state.held_back;
        return;
      }
      held_back = state.held_back;
      state = {now, 0};
    }
    if (held_back == 0) return log_line(line);
    log_line(std::string(line) + " (" + std::to_string(held_back) + " more like it before)");
  } catch (...) {
  }
}

}  // namespace trainmon
