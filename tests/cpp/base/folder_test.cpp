// What entries_of() finds, beside what was put there.
#include "base/folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "file_content.h"
#include "scratch.h"

namespace trainmon {
namespace {

TEST(Folder, AllEntriesAndNoOthers) {
  const Scratch scratch;
  EXPECT_TRUE(entries_of(scratch.path()).empty());
  put(scratch.path() / "a", "1");
  put(scratch.path() / ".hidden", "2");
  std::filesystem::create_directory(scratch.path() / "b");
  std::filesystem::create_symlink("nowhere", scratch.path() / "c");
  std::vector<std::filesystem::path> found = entries_of(scratch.path());
  std::ranges::sort(found);
  const std::vector<std::filesystem::path> expected = {
      scratch.path() / ".hidden", scratch.path() / "a", scratch.path() / "b", scratch.path() / "c"};
  EXPECT_EQ(found, expected);
}

TEST(Folder, NoneWhereThereIsNoFolder) {
  const Scratch scratch;
  EXPECT_TRUE(entries_of(scratch.path() / "missing").empty());
  put(scratch.path() / "a", "1");
  EXPECT_TRUE(entries_of(scratch.path() / "a").empty());
}

}  // namespace
}  // namespace trainmon
