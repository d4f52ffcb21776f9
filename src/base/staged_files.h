// Files that appear together: written under temporary names, then renamed one after another.
#pragma once

#include <filesystem>
#include <functional>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace trainmon {

// What is not committed leaves nothing behind, and files that were there before stay as they were.
// Members throw SinkError. Not thread-safe.
class StagedFiles {
 public:
  StagedFiles() = default;
  StagedFiles(const StagedFiles&) = delete;
  StagedFiles& operator=(const StagedFiles&) = delete;
  ~StagedFiles() { discard(); }

  // A file that will be `path`, after those added before. `fill` writes its bytes with write_at()
  // to the file and the name it is given: a name in the same folder that nobody had. The folder
  // must exist. `mode` as in create_file().
  void add(const std::filesystem::path& path,
           const std::function<void(const File&, const std::filesystem::path&)>& fill,
           mode_t mode = kFileMode);
  void add(const std::filesystem::path& path, std::string_view content, mode_t mode = kFileMode);
  // Gives every file its name, replacing what bears it. When that fails halfway those already named
  // are removed again (what they replaced is gone).
  void commit();

 private:
  void discard() noexcept;

  struct Staged {
    std::filesystem::path path, temporary;
  };
  std::vector<Staged> waiting_;
};

}  // namespace trainmon
