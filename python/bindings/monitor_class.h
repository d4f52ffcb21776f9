// The class Monitor of Python, which several files bind together.
#pragma once

#include <nanobind/nanobind.h>

#include <initializer_list>
#include <string>
#include <string_view>

#include "parts.h"
#include "trainmon/record.h"

namespace trainmon {

namespace nb = nanobind;

using MonitorClass = nb::class_<BoundMonitor, Monitor>;

void bind_windows(MonitorClass& monitor);
void bind_rows(MonitorClass& monitor);
void bind_reports(MonitorClass& monitor);
void bind_flight(MonitorClass& monitor);

// The value of this name; ValueError says which are valid.
template <typename Enum, typename Name>
Enum named(std::string_view text, std::initializer_list<Enum> values, Name name, const char* what) {
  std::string valid;
  for (const Enum value : values) {
    if (name(value) == text) return value;
    valid += (valid.empty() ? "" : ", ") + std::string(name(value));
  }
  throw nb::value_error(
      (std::string(what) + " must be one of " + valid + ", not '" + std::string(text) + "'")
          .c_str());
}

inline DType dtype_of(std::string_view text) {
  if (const auto dtype = dtype_from_name(text)) return *dtype;
  throw nb::value_error(("dtype '" + std::string(text) + "' is not measured").c_str());
}

}  // namespace trainmon
