// What a tracker has of a run already, kept in a folder of the person who pushes. The run is no
// place for it: it belongs to the training that writes it, may be read-only, and may be pushed to
// several places.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "answers/series_choice.h"
#include "base/file.h"

namespace trainmon {

struct PushPosition {
  std::map<std::string, std::int64_t> steps;  // of each start, by its id: the newest step
  std::vector<PushedSeries> chosen;
  std::string verdict;                         // the newest that was said
  std::optional<std::vector<int>> ranks = {};  // of PushOptions; nullopt: of an earlier version
};

class PositionFile {
 public:
  // Makes the folder. Throws std::runtime_error where another process pushes with it or where its
  // file position.json is none of ours, SinkError where it cannot be used.
  explicit PositionFile(std::filesystem::path folder);

  const PushPosition& at_start() const { return at_start_; }
  // On the disk when it returns. Throws SinkError.
  void write(const PushPosition& position) const;

 private:
  const std::filesystem::path path_;
  const File lock_;
  PushPosition at_start_;
};

}  // namespace trainmon
