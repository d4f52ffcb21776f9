// By readdir(): std::filesystem::directory_iterator allocates in functions that may not throw.
#include "base/folder.h"

#include <dirent.h>

#include <cerrno>
#include <memory>
#include <new>
#include <string_view>

namespace trainmon {
namespace {

struct Closes {
  void operator()(DIR* stream) const { ::closedir(stream); }
};

}  // namespace

std::vector<std::filesystem::path> entries_of(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> entries;
  const std::unique_ptr<DIR, Closes> stream(::opendir(directory.c_str()));
  if (stream == nullptr && errno == ENOMEM) throw std::bad_alloc();
  if (stream == nullptr) return entries;
  while (const dirent* entry = ::readdir(stream.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") entries.push_back(directory / name);
  }
  return entries;
}

}  // namespace trainmon
