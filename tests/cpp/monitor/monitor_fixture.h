// What the monitor tests share: a scratch run directory and one-line observations.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <vector>

#include "trainmon/monitor.h"
#include "trainmon/read.h"

namespace trainmon::testing {

struct Scratch {
  std::filesystem::path path;
  Scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "trainmon-XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~Scratch() { std::filesystem::remove_all(path); }
  Config config() const {
    Config config;
    config.out = path.string();
    return config;
  }
};

inline SeriesId series_of(Monitor& monitor, const std::string& name) {
  Series series;
  series.kind = "grad_reduced";
  series.name = name;
  return monitor.add_series(series);
}

inline Observed observe(Monitor& monitor, SeriesId series, const std::vector<float>& values) {
  const auto size = static_cast<std::int64_t>(values.size());
  TensorView view;
  view.data = values.data();
  view.ndim = 1;
  view.sizes = &size;
  return monitor.observe(series, view);
}

}  // namespace trainmon::testing
