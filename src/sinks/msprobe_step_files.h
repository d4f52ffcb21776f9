// Text appended to msprobe's files, each of so many steps; what a batch appended can be taken back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "sinks/msprobe_csv.h"

namespace trainmon::msprobe_csv {

// Errors are SinkErrors with a reason of base/file.h.
class StepFiles {
 public:
  void open(const std::filesystem::path& directory, std::int64_t first_step,
            std::int64_t steps_per_file);

  // A file with other columns is left alone: they were changed meanwhile, or it is of an earlier
  // run. The steps from here on get a file of their own.
  void append(const StepFile& file, std::int64_t step);
  // False, and nothing done, for a file with another head.
  bool append_to(const std::filesystem::path& path, const std::string& head,
                 const std::string& text);

  // What was appended since the last keep() or undo() stays, or is taken back.
  void keep() { appended_.clear(); }
  void undo();

 private:
  struct Appended {
    std::filesystem::path path;
    std::int64_t size = 0;
    bool is_new = false;
  };
  struct Current {
    std::int64_t to = -1;
    std::string head;
    std::filesystem::path path;
  };
  std::filesystem::path path_of(const std::string& stem, std::int64_t from, std::int64_t to) const;

  std::filesystem::path directory_;
  std::int64_t first_step_ = 0;
  std::int64_t steps_per_file_ = 1;
  std::map<std::string, Current> current_;  // the file in use, by stem
  std::vector<Appended> appended_;
};

}  // namespace trainmon::msprobe_csv
