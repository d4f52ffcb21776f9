// How far a long command is: a bar on a terminal, a line now and then elsewhere; always on stderr.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

#include "cli/commands.h"

namespace trainmon::cli {

class Progress {
 public:
  Progress(std::string what, const Context& context);
  ~Progress();  // wipes the bar
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Bytes; any thread.
  void show(std::int64_t done, std::int64_t total);

 private:
  using Clock = std::chrono::steady_clock;
  const std::string what_;
  const bool is_quiet_;
  const bool is_terminal_;
  const Clock::time_point begin_;
  std::mutex mutex_;
  Clock::time_point next_;
  bool has_bar_ = false;
};

// Ctrl-C and SIGTERM ask the command to end while one of these lives; the second one ends it at
// once.
class Interruptible {
 public:
  Interruptible();
  ~Interruptible();
  static bool asked();
};

}  // namespace trainmon::cli
