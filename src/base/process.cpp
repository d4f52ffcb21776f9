// Linux: /proc says what a process is and since when.
#include "base/process.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <sstream>

namespace trainmon {
namespace {

constexpr double kSlack = 5.0;  // seconds by which clocks may differ

// Seconds since 1970; 0 where it cannot be told.
double boot_time() {
  std::ifstream stat("/proc/stat");
  std::string word;
  while (stat >> word) {
    double seconds = 0.0;
    if (word == "btime" && stat >> seconds) return seconds;
  }
  return 0.0;
}

// Empty where there is no such process.
struct Stat {
  std::string state;  // one letter
  std::string ticks;  // since the boot, in which it began
};
Stat stat_of(std::int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  Stat stat;
  if (!std::getline(file, text)) return stat;
  // The name, in brackets, may hold anything; the state is the first word after it.
  std::istringstream rest(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  rest >> stat.state;
  for (int field = 4; field <= 22; ++field) rest >> stat.ticks;
  if (!rest) stat.ticks.clear();
  return stat;
}

constexpr char kUtc[] = "%Y-%m-%dT%H:%M:%SZ";

std::string utc_of_seconds(std::time_t seconds) {
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, kUtc, &parts)};
}

}  // namespace

double seconds_of_utc(const std::string& text) {
  std::tm parts{};
  const char* const end = strptime(text.c_str(), kUtc, &parts);
  return end == nullptr ? 0.0 : static_cast<double>(timegm(&parts));
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

std::string pid_namespace() {
  char name[64] = {};
  const ssize_t length = readlink("/proc/self/ns/pid", name, sizeof name - 1);
  return length > 0 ? std::string(name, static_cast<std::size_t>(length)) : std::string();
}

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

std::string start_ticks(std::int64_t pid) {
  return stat_of(pid).ticks;
}

Alive is_alive(const ProcessFacts& process) {
  if (process.pid <= 0 || process.host.empty() || process.host != host_name()) {
    return Alive::unknown;
  }
  if (!process.pid_namespace.empty() && process.pid_namespace != pid_namespace()) {
    return Alive::unknown;
  }
  if (access("/proc/self/stat", R_OK) != 0) return Alive::unknown;
  const Stat now = stat_of(process.pid);
  if (now.state.empty()) return Alive::no;
  if (now.state == "Z" || now.state == "X") return Alive::no;
  if (!process.boot.empty() && !process.ticks.empty() && !boot_id().empty()) {
    const bool is_same = process.boot == boot_id() && process.ticks == now.ticks;
    return is_same ? Alive::yes : Alive::no;
  }
  // Records of earlier versions: a clock that was set since moves the time of the boot.
  const double began = boot_time() + std::strtod(now.ticks.c_str(), nullptr) /
                                         static_cast<double>(sysconf(_SC_CLK_TCK));
  const double claimed = seconds_of_utc(process.started);
  return claimed > 0.0 && boot_time() > 0.0 && began > claimed + kSlack ? Alive::no : Alive::yes;
}

bool is_suspended(const ProcessFacts& process) {
  if (is_alive(process) != Alive::yes) return false;
  const std::string state = stat_of(process.pid).state;
  return state == "T" || state == "t";
}

std::string utc_text(std::int64_t time_ns) {
  return utc_of_seconds(time_ns / 1'000'000'000);
}

std::string utc_now() {
  return utc_of_seconds(std::time(nullptr));
}

}  // namespace trainmon
