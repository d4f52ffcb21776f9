// Names in between: ".{name}.{pid}.tmp", so that whoever comes later knows if it is still written.
#include "convert/staging.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "base/file.h"
#include "base/text.h"
#include "sinks/run_tables.h"

namespace trainmon {
namespace fs = std::filesystem;
namespace {

void remove_leftovers(const fs::path& directory, const std::string& stem) {
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(stem)) continue;
    char* end_of_pid = nullptr;
    const long pid = std::strtol(name.c_str() + stem.size(), &end_of_pid, 10);
    // SQLite puts a journal beside a database.
    const std::string_view rest(end_of_pid);
    if (rest != ".tmp" && rest != ".tmp-journal") continue;
    const bool is_alive = pid <= 0 || ::kill(static_cast<pid_t>(pid), 0) == 0 || errno == EPERM;
    std::error_code unknown;
    if (!is_alive) fs::remove_all(entry->path(), unknown);
  }
}

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// Whether a conversion to a directory writes a file of this path in it.
bool is_part_of_output(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!path.has_parent_path()) {
    for (const char* of : {"rows", "scalars", "declared", "alerts", "gaps", "payloads"}) {
      if (name == std::string(of) + ".csv" || name == std::string(of) + ".jsonl") return true;
    }
    return name == "_declared.pq";
  }
  const std::string top = path.begin()->string();
  if (top.starts_with("kind=")) return name.ends_with(".parquet");
  const bool is_of_rank = (top.starts_with("rank_") && is_number(top.substr(5))) ||
                          (top.starts_with("rank") && is_number(top.substr(4)));
  return (is_of_rank || top == "merged") && name.starts_with("events.out.tfevents.");
}

// By the first bytes of the file. SQLite keeps the application id in bytes 68 to 71; msprobe's
// databases have none, but this table.
bool is_own_database(std::string_view begin) {
  if (!begin.starts_with("SQLite format 3")) return false;
  std::uint32_t id = 0;
  for (const char byte : begin.substr(std::min<std::size_t>(begin.size(), 68), 4)) {
    id = id << 8 | static_cast<unsigned char>(byte);
  }
  return id == kSqliteApplicationId || begin.find("monitoring_targets") != std::string_view::npos;
}

// What is there goes for good: only what a conversion has made.
void check_replaceable(const fs::path& to, bool is_directory) {
  const auto refuse = [&](const std::string& why) {
    throw std::runtime_error(printable(to.native()) + " is not replaced: " + why);
  };
  std::error_code unknown;
  const fs::file_status status = fs::symlink_status(to, unknown);
  if (is_directory) {
    if (!fs::is_directory(status)) refuse("it is no directory");
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(to)) {
      const bool is_folder = entry.is_directory() && !entry.is_symlink();
      const fs::path inside = entry.path().lexically_relative(to);
      if (is_folder || is_part_of_output(inside)) continue;
      refuse("it holds " + printable(inside.native()) + ", which no conversion wrote");
    }
    return;
  }
  if (!fs::is_regular_file(status)) refuse("it is no file");
  std::string begin;
  try {
    begin = read_beginning(to, 1 << 20);
  } catch (const SinkError&) {
    return refuse("it cannot be read");
  }
  if (!begin.empty() && !is_own_database(begin)) refuse("it is no database of a conversion");
}

}  // namespace

Staging::Staging(fs::path to, bool is_directory, bool overwrite)
    : to_(std::move(to)), is_directory_(is_directory), overwrite_(overwrite) {
  const fs::path name = to_.filename();
  // A NUL ends the name for the system, which would then take the directory.
  if (name.empty() || name == "." || name == ".." || to_.native().find('\0') != std::string::npos) {
    throw std::invalid_argument("'" + printable(to_.native()) + "' is no name for an output");
  }
  std::error_code unknown;
  const bool is_there = fs::symlink_status(to_, unknown).type() != fs::file_type::not_found;
  if (is_there && !overwrite_) {
    throw std::runtime_error(printable(to_.native()) + " exists already; --overwrite replaces it");
  }
  if (is_there) check_replaceable(to_, is_directory);
  const fs::path directory = to_.has_parent_path() ? to_.parent_path() : fs::path(".");
  make_directories(directory);
  const std::string stem = "." + name.string() + ".";
  remove_leftovers(directory, stem);
  path_ = directory / (stem + std::to_string(::getpid()) + ".tmp");
  fs::remove_all(path_, unknown);  // of an earlier conversion of this process
}

void Staging::remove() noexcept {
  if (path_.empty()) return;
  std::error_code unknown;
  fs::remove_all(path_, unknown);
  path_.clear();
}

void Staging::publish() {
  // An exchange leaves the old output under our name, to be removed.
  constexpr unsigned kExchange = 1u << 1;
  constexpr unsigned kNoReplace = 1u << 0;
  if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, to_.c_str(), kNoReplace) == 0) {
    path_.clear();
    return;
  }
  const bool is_there = errno == EEXIST;
  if (is_there && !overwrite_) {
    throw std::runtime_error(printable(to_.native()) + " exists by now and is not replaced");
  }
  // Somebody else may have put something there meanwhile.
  if (is_there) check_replaceable(to_, is_directory_);
  if (is_there && ::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, to_.c_str(), kExchange) == 0) {
    return;
  }
  std::error_code error;
  if (fs::is_directory(to_, error)) fs::remove_all(to_, error);
  if (::rename(path_.c_str(), to_.c_str()) != 0) throw file_error(errno, "cannot name", to_);
  path_.clear();
}

}  // namespace trainmon
