// What a benchmark found, for `make bench`: with `--json FILE` a list of lines, each a figure with
// its yardstick of the same run (benchmarks/python/timed.py writes the same from Python).
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace bench {

struct Line {
  std::string name;
  double figure = 0.0;
  std::string unit;
  std::string yardstick;
  double yardstick_figure = 0.0;  // in the same unit
  bool lower_is_better = true;
};

// Takes `option VALUE` out of the arguments and returns VALUE, `otherwise` without it.
inline std::string take_argument(int& argc, char** argv, const char* option,
                                 const char* otherwise) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], option) != 0) continue;
    const std::string value = argv[i + 1];
    for (int k = i; k + 2 < argc; ++k) argv[k] = argv[k + 2];
    argc -= 2;
    return value;
  }
  return otherwise;
}

// Ends the program when the file cannot be written. Names must need no escaping in JSON.
inline void write_lines(const std::string& file, const std::vector<Line>& lines) {
  if (file.empty()) return;
  std::FILE* out = std::fopen(file.c_str(), "w");
  if (out == nullptr) {
    std::perror(file.c_str());
    std::exit(1);
  }
  const char* before = "[";
  for (const Line& line : lines) {
    std::fprintf(out,
                 "%s\n {\"name\": \"%s\", \"figure\": %.9g, \"unit\": \"%s\", \"yardstick\": "
                 "\"%s\", \"yardstick_figure\": %.9g, \"ratio\": %.9g, \"lower_is_better\": %s}",
                 before, line.name.c_str(), line.figure, line.unit.c_str(), line.yardstick.c_str(),
                 line.yardstick_figure, line.figure / line.yardstick_figure,
                 line.lower_is_better ? "true" : "false");
    before = ",";
  }
  std::fprintf(out, "%s\n]\n", lines.empty() ? "[" : "");
  if (std::fclose(out) != 0) {
    std::perror(file.c_str());
    std::exit(1);
  }
}

}  // namespace bench
