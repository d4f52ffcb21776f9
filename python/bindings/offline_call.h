// What bound calls that take long share: paths and texts, Ctrl-C, progress, errors of the system.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "base/cancelled.h"
#include "gil.h"
#include "trainmon/monitor.h"

namespace trainmon {

inline std::filesystem::path path_of(const nanobind::bytes& bytes) {
  return std::string(bytes.c_str(), bytes.size());
}

// Names hold whatever bytes the user's did; what is no UTF-8 becomes lone surrogates.
inline nanobind::object text(std::string_view bytes) {
  return nanobind::steal(
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "surrogateescape"));
}
inline nanobind::object path_text(const std::filesystem::path& path) {
  return text(path.native());
}

// What this process is still writing there is on its way to the files first; a disk that hangs is
// not waited for. Without the GIL.
inline void settle_writers_of(const std::filesystem::path& path) {
  settle_monitors_of(path, 3.0);
}

// Raises it as an OSError; which subclass (PermissionError, ...), OSError decides by the number.
[[noreturn]] inline void raise_os_error(const std::system_error& error) {
  namespace nb = nanobind;
  const nb::object raised = nb::handle(PyExc_OSError)(error.code().value(), error.what());
  PyErr_SetObject(raised.type().ptr(), raised.ptr());
  throw nb::python_error();
}

// What `work` makes of this run, without the GIL.
template <typename Work>
auto unlocked(const std::filesystem::path& path, const Work& work) {
  try {
    const ReleasedGil release;
    settle_writers_of(path);
    return work();
  } catch (const std::system_error& error) {
    raise_os_error(error);
  }
}

// work(options) without the GIL. Sets options.cancelled, which sees Ctrl-C, and options.progress,
// which calls `progress` unless that is None. An exception of either, or an OSError, is raised.
template <typename Options, typename Work>
auto run_offline(Options& options, const nanobind::object& progress, const Work& work) {
  namespace nb = nanobind;
  // Ctrl-C is only seen on the main thread, which waits here: it asks as often as the work does.
  std::atomic<bool> is_interrupted{false};
  const unsigned long main_thread = PyThread_get_thread_ident();
  options.cancelled = [&] {
    if (is_interrupted || PyThread_get_thread_ident() != main_thread) return is_interrupted.load();
    const HeldGil gil;
    if (PyErr_CheckSignals() != 0) is_interrupted = true;  // the exception stays set
    return is_interrupted.load();
  };
  if (!progress.is_none()) {
    options.progress = [&](std::int64_t done, std::int64_t total) {
      const HeldGil gil;
      if (PyErr_Occurred() != nullptr) return;
      progress(done, total);
    };
  }
  try {
    const ReleasedGil release;
    return work(options);
  } catch (const Cancelled&) {
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    throw;
  } catch (const std::system_error& error) {
    raise_os_error(error);
  }
}

}  // namespace trainmon
