// A full disk fails while the temporary files are written, before any name changes hands.
#include "base/staged_files.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace trainmon {
namespace {

std::filesystem::path temporary_of(const std::filesystem::path& path) {
  return path.string() + ".tmp";
}

}  // namespace

void StagedFiles::add(const std::filesystem::path& path,
                      const std::function<void(const File&, const std::filesystem::path&)>& fill) {
  const std::filesystem::path temporary = temporary_of(path);
  if (::unlink(temporary.c_str()) != 0 && errno != ENOENT) {
    throw file_error(errno, "cannot remove", temporary);
  }
  const File file = create_file(temporary);
  waiting_.push_back(path);
  fill(file, temporary);
}

void StagedFiles::add(const std::filesystem::path& path, std::string_view content) {
  add(path, [&](const File& file, const std::filesystem::path& name) {
    write_at(file, 0, content, name);
  });
}

void StagedFiles::commit() {
  for (std::size_t i = 0; i < waiting_.size(); ++i) {
    const std::filesystem::path& path = waiting_[i];
    if (::rename(temporary_of(path).c_str(), path.c_str()) == 0) continue;
    const SinkError error = file_error(errno, "cannot rename to", path);
    for (std::size_t done = 0; done < i; ++done) ::unlink(waiting_[done].c_str());
    throw error;
  }
  waiting_.clear();
}

void StagedFiles::discard() noexcept {
  for (const std::filesystem::path& path : waiting_) ::unlink(temporary_of(path).c_str());
  waiting_.clear();
}

}  // namespace trainmon
