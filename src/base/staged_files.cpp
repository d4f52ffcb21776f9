// A full disk fails while the temporary files are written, before any name changes hands.
#include "base/staged_files.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace trainmon {
namespace {

// A new file beside `path`; its name.
std::filesystem::path create_beside(const std::filesystem::path& path, mode_t mode, File& file) {
  constexpr int kAttempts = 1000;
  const std::string stem = path.string() + "." + std::to_string(::getpid()) + "-";
  for (int number = 0;; ++number) {
    const std::filesystem::path name = stem + std::to_string(number) + ".tmp";
    try {
      file = create_file(name, mode);
      return name;
    } catch (const SinkError& error) {
      if (error.reason() != "exists" || number == kAttempts) throw;
    }
  }
}

}  // namespace

void StagedFiles::add(const std::filesystem::path& path,
                      const std::function<void(const File&, const std::filesystem::path&)>& fill,
                      mode_t mode) {
  File file;
  const std::filesystem::path temporary = create_beside(path, mode, file);
  waiting_.push_back({path, temporary});
  fill(file, temporary);
}

void StagedFiles::add(const std::filesystem::path& path, std::string_view content, mode_t mode) {
  const auto fill = [&](const File& file, const std::filesystem::path& name) {
    write_at(file, 0, content, name);
  };
  add(path, fill, mode);
}

void StagedFiles::commit() {
  for (std::size_t i = 0; i < waiting_.size(); ++i) {
    const auto& [path, temporary] = waiting_[i];
    if (::rename(temporary.c_str(), path.c_str()) == 0) continue;
    const SinkError error = file_error(errno, "cannot rename to", path);
    for (std::size_t done = 0; done < i; ++done) ::unlink(waiting_[done].path.c_str());
    throw error;
  }
  waiting_.clear();
}

void StagedFiles::discard() noexcept {
  for (const Staged& one : waiting_) ::unlink(one.temporary.c_str());
  waiting_.clear();
}

}  // namespace trainmon
