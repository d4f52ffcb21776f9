// Errors the core throws at start-up and from offline tools. Nothing throws into a training loop.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace trainmon {

// A configuration with one or more faults. what() lists them one per line (the first 50).
class ConfigError : public std::invalid_argument {
 public:
  explicit ConfigError(std::vector<std::string> faults);
  const std::vector<std::string>& faults() const { return faults_; }

 private:
  std::vector<std::string> faults_;
};

// A sink could not take a batch or a file could not be opened. `reason` is a short stable word for
// counters ("no_space", "io_error", "no_descriptors", "gone", "read_only", "permission").
class SinkError : public std::runtime_error {
 public:
  SinkError(std::string reason, const std::string& message)
      : std::runtime_error(message), reason_(std::move(reason)) {}
  const std::string& reason() const { return reason_; }

 private:
  std::string reason_;
};

}  // namespace trainmon
