// This machine: versions, instruction set, the working directory, limits, Python.
#include "cli/machine.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <optional>

#include "base/file.h"
#include "base/file_system.h"
#include "base/text.h"
#include "cli/output.h"
#include "cli/python.h"
#include "stats/cpu/level.h"
#include "stats/cuda/measure_cuda.h"
#include "trainmon/config.h"
#include "trainmon/version.h"

namespace trainmon::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kWritten = std::int64_t{16} << 20;
constexpr std::uintmax_t kLittleSpace = std::uintmax_t{1} << 30;
constexpr auto kPythonTime = std::chrono::seconds(10);

Json limit_json(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<decltype(RLIMIT_NOFILE)>(resource), &limit) != 0) return nullptr;
  if (limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return static_cast<std::uint64_t>(limit.rlim_cur);
}

// Bytes a second onto the disk of `folder`, by a file without a name; what failed instead.
std::optional<double> write_speed(const fs::path& folder, std::string& why) {
  std::string name = (folder / ".trainmon-doctor-XXXXXX").native();
  File file(::mkstemp(name.data()));
  if (!file.is_open()) {
    why = std::strerror(errno);
    return std::nullopt;
  }
  ::unlink(name.c_str());
  const std::string piece(std::size_t{1} << 20, 'x');
  const auto start = Clock::now();
  try {
    for (std::int64_t at = 0; at < kWritten; at += static_cast<std::int64_t>(piece.size())) {
      write_at(file, at, piece, folder);
    }
    if (::fdatasync(file.fd()) != 0) throw file_error(errno, "cannot sync a file in", folder);
  } catch (const SinkError& error) {
    why = error.what();
    return std::nullopt;
  }
  const std::chrono::duration<double> spent = Clock::now() - start;
  return static_cast<double>(kWritten) / spent.count();
}

// What the interpreter prints, within a time limit; nullopt when it cannot be started or fails.
std::optional<std::string> python_says(const std::string& program) {
  std::optional<PythonProcess> python;
  try {
    python.emplace(program, std::vector<std::string>(), false);
  } catch (const std::runtime_error&) {
    return std::nullopt;
  }
  std::string said;
  const auto end = Clock::now() + kPythonTime;
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    pollfd ready{python->output(), POLLIN, 0};
    if (left.count() <= 0 || ::poll(&ready, 1, static_cast<int>(left.count())) <= 0) {
      return std::nullopt;
    }
    std::array<char, 4096> part{};
    const ssize_t size = ::read(python->output(), part.data(), part.size());
    if (size <= 0) break;
    said.append(part.data(), static_cast<std::size_t>(size));
  }
  if (!python->wait()) return std::nullopt;
  return said;
}

// Versions by name, null where not installed. Nothing is imported: torch takes seconds.
Json python_json() {
  Json out;
  out["interpreter"] = interpreter();
  const auto said = python_says(R"(
import json, sys
from importlib.metadata import PackageNotFoundError, version
found = {"python": sys.version.split()[0]}
for name in ("trainmon", "torch", "numpy", "pandas", "matplotlib", "pyarrow", "tensorboard"):
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        found[name] = None
print(json.dumps(found)))");
  out["found"] = Json();
  if (said) {
    const Json found = Json::parse(*said, nullptr, false);
    if (found.is_object()) out["found"] = found;
  }
  return out;
}

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string bytes_of(const Json& value) {
  return value.is_number() ? bytes_text(value.get<double>()) : text_of(value);
}

void print_text(const Json& out, const Context& context) {
  const auto line = [](const char* title, const std::string& text) {
    std::cout << title << std::string(16 - std::strlen(title), ' ') << text << "\n";
  };
  line("trainmon", out["version"].get<std::string>());
  line("system", printable(text_of(out["system"])));
  std::string level = text_of(out["cpu_level"]);
  if (out["cpu_level"] != out["cpu_level_detected"]) {
    level += " (this machine has " + text_of(out["cpu_level_detected"]) + ")";
  }
  line("instructions", level);
  const std::string cuda = text_of(out["cuda_kernels"]);
  line("CUDA kernels", cuda.empty() ? "none in this build: it was made without nvcc" : cuda);
  if (!cuda.empty()) {
    const std::string missing = text_of(out["cuda_driver_missing"]);
    line("CUDA driver", missing.empty() ? "found" : missing);
  }
  line("directory", printable(text_of(out["directory"])));
  std::string disk = out["disk_free_bytes"].is_null() ? "free space unknown"
                                                      : bytes_of(out["disk_free_bytes"]) + " free";
  if (!out["network_file_system"].is_null()) {
    disk += ", on a network (" + text_of(out["network_file_system"]) + ")";
  }
  line("disk", disk);
  line("writing", out["write_bytes_per_second"].is_null()
                      ? "not possible"
                      : bytes_of(out["write_bytes_per_second"]) + " a second");
  line("open files", text_of(out["limit_open_files"]) + " at most");
  line("file size", bytes_of(out["limit_file_bytes"]) + " at most");
  const Json& python = out["python"];
  line("interpreter", printable(text_of(python["interpreter"])) +
                          (python["found"].is_null() ? " (cannot be started)" : ""));
  for (const auto& [name, version] : python["found"].items()) {
    line(name == "trainmon" ? "  its trainmon" : ("  " + name).c_str(),
         version.is_null() ? "not installed" : printable(text_of(version)));
  }
  for (const Json& note : out["notes"]) line("note", printable(text_of(note)));
  for (const Json& finding : out["findings"]) {
    std::cout << red(context, "finding") << "         " << printable(text_of(finding)) << "\n";
  }
}

}  // namespace

void inspect_machine(const std::string& config_file, Context& context) {
  std::error_code error;
  const fs::path here = fs::current_path(error);
  const fs::space_info space = fs::space(here, error);
  std::vector<std::string> findings, notes;
  Json out;
  out["version"] = kVersion;
  utsname system{};
  ::uname(&system);
  out["system"] = std::string(system.sysname) + " " + system.release + " " + system.machine;
  out["cpu_level"] = cpu_level_name(cpu_level());
  out["cpu_level_detected"] = cpu_level_name(detected_cpu_level());
  out["cuda_kernels"] = cuda_architectures();
  out["cuda_driver_missing"] = cuda_driver_missing();
  if (const char* wanted = std::getenv("TRAINMON_CPU_LEVEL")) {
    const std::optional<CpuLevel> level = cpu_level_from_name(wanted);
    const std::string text = "TRAINMON_CPU_LEVEL=" + std::string(wanted);
    if (!level) findings.push_back(text + " is ignored: it must be baseline, avx2 or avx512");
    if (level > detected_cpu_level()) notes.push_back(text + " is ignored: not on this machine");
  }
  out["directory"] = here.string();
  out["disk_free_bytes"] = error ? Json() : Json(space.available);
  if (!error && space.available < kLittleSpace) {
    findings.push_back("only " + bytes_text(static_cast<double>(space.available)) +
                       " are free in the working directory");
  }
  const auto network = network_file_system(here);
  out["network_file_system"] = network ? Json(*network) : Json();
  if (network) {
    notes.push_back("the working directory is on a network file system (" + std::string(*network) +
                    "): the sink log is made for it, sqlite is not");
  }
  std::string why;
  const auto speed = write_speed(here, why);
  out["write_bytes_per_second"] = speed ? Json(std::round(*speed)) : Json();
  if (!speed) findings.push_back("the working directory cannot be written: " + why);
  out["limit_open_files"] = limit_json(RLIMIT_NOFILE);
  out["limit_file_bytes"] = limit_json(RLIMIT_FSIZE);
  out["python"] = python_json();
  if (!config_file.empty()) {
    Json faults = Json::array();
    try {
      config_from_json(read_file(config_file, std::int64_t{1} << 26));
    } catch (const ConfigError& fault) {
      faults = fault.faults();
    }
    for (const Json& fault : faults) {
      findings.push_back(config_file + ": " + fault.get<std::string>());
    }
    if (faults.empty()) notes.push_back(config_file + " is valid");
    out["config_faults"] = faults;
  }
  out["notes"] = notes;
  out["findings"] = findings;
  if (!findings.empty()) context.exit_code = kFindings;
  if (context.json) return print_json(out);
  print_text(out, context);
}

}  // namespace trainmon::cli
