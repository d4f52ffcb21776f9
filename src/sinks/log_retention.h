// Which segments of a rank's logs are deleted, the oldest first, so that they keep to a size and
// an age. The file that tells readers is here, too (docs/formats.md, retention.json).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "trainmon/record.h"

namespace trainmon {

inline constexpr std::string_view kRetentionFile = "retention.json";

// What may stay of the logs of a rank, of all its starts together; 0: no limit.
struct Retention {
  std::int64_t bytes = 0;       // the segment that is being written among them
  std::chrono::seconds age{0};  // since a segment was written last
  // Between two looks at what may stay, where no segment is begun meanwhile.
  std::chrono::seconds interval{600};
  // Whether somebody writes to the folder of an older start still, which keeps to a limit of its
  // own. Empty: nobody does.
  std::function<bool(const std::filesystem::path&)> lives = {};
  bool is_set() const { return bytes > 0 || age.count() > 0; }
};

// Of the writer thread. First choose(), then write what declared() gives, then remove(). So a
// kill at any instant leaves no segment that readers would miss, and no value that holds
// undeclared.
class LogRetention {
 public:
  explicit LogRetention(Retention keep) : keep_(keep) {}

  // A segment of `directory` was closed with so many rows and batches in it.
  void closed(int number, std::int64_t rows, std::int64_t batches);
  // A batch was written to this segment.
  void wrote(const RecordBatch& batch, int segment);
  // Chooses among the segments of this start of the rank, but for `open` and those behind it. So it
  // does of the starts before it that have ended. `room`: bytes that the open one may take. Whether
  // there are any.
  bool choose(const std::filesystem::path& directory, int open, std::int64_t room);
  // Values in force that are declared in chosen segments of this start alone.
  std::vector<Declared> declared() const;
  // Deletes what was chosen. Where a file of a directory cannot be written, its segments stay, and
  // a SinkError says so once all the others are gone.
  void remove();
  // Of this start. Any thread.
  std::int64_t rows_expired() const { return rows_.load(std::memory_order_relaxed); }

 private:
  struct Chosen {
    std::filesystem::path directory;
    std::vector<std::pair<int, std::filesystem::path>> segments;  // ascending, with numbers
  };
  struct Held {
    Declared declared;  // with this value alone
    int segment = 0;
  };
  using Name = std::tuple<std::int32_t, std::int32_t, std::string>;  // optimizer, group, name
  struct Counts {
    std::int64_t rows = 0;
    std::int64_t batches = 0;
  };
  void tell(const Chosen& chosen);

  const Retention keep_;
  std::map<int, Counts> closed_;  // segments of this start
  std::map<Name, Held> held_;
  std::vector<Chosen> chosen_;
  std::filesystem::path own_;
  std::int64_t batches_ = 0;  // expired ones of this start
  std::atomic<std::int64_t> rows_{0};
};

}  // namespace trainmon
