// Modes, links, limits and atomic replacement, against a real file system.
#include "base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <fstream>

#include "base/failpoint.h"
#include "base/file_in_pieces.h"
#include "scratch.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

std::string reason_of(const auto& action) {
  try {
    action();
  } catch (const SinkError& error) {
    return error.reason();
  }
  return "none";
}

unsigned mode_of(const fs::path& path) {
  struct stat status {};
  EXPECT_EQ(::lstat(path.c_str(), &status), 0);
  return status.st_mode & 07777;
}

TEST(File, ModesAreTheOnesPromisedWhateverTheUmask) {
  const Scratch scratch;
  const mode_t before = ::umask(0);
  make_directories(scratch.path() / "a" / "b c" / "模");
  create_file(scratch.path() / "a" / "f");
  write_atomically(scratch.path() / "a" / "g", "text");
  ::umask(before);
  EXPECT_EQ(mode_of(scratch.path() / "a"), 0750u);
  EXPECT_EQ(mode_of(scratch.path() / "a" / "b c" / "模"), 0750u);
  EXPECT_EQ(mode_of(scratch.path() / "a" / "f"), 0640u);
  EXPECT_EQ(mode_of(scratch.path() / "a" / "g"), 0640u);
}

TEST(File, AModeThatWasAskedForIsTheFilesUnderAnyUmask) {
  const Scratch scratch;
  const mode_t before = ::umask(0077);
  create_file(scratch.path() / "f", 0644);
  write_atomically(scratch.path() / "g", "old");
  write_atomically(scratch.path() / "g", "text", 0644);
  create_file(scratch.path() / "h");
  ::umask(before);
  EXPECT_EQ(mode_of(scratch.path() / "f"), 0644u);
  EXPECT_EQ(mode_of(scratch.path() / "g"), 0644u);
  EXPECT_EQ(mode_of(scratch.path() / "h"), 0600u);
}

// In a process of its own: the standard descriptors of this one stay.
TEST(File, NoDescriptorIsEverAStandardOne) {
  const Scratch scratch;
  const pid_t child = ::fork();
  if (child == 0) {
    for (const int standard : {0, 1, 2}) ::close(standard);
    const File created = create_file(scratch.path() / "a");
    const File read = open_file(scratch.path() / "a");
    const File shared = open_to_share(scratch.path() / "b");
    const Appendable appended = open_to_append(scratch.path() / "c");
    int wrong = 0;
    for (const int fd : {created.fd(), read.fd(), shared.fd(), appended.file.fd()}) {
      wrong += fd > 2 && (::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0 ? 0 : 1;
    }
    for (const int standard : {0, 1, 2}) wrong += ::fcntl(standard, F_GETFD) == -1 ? 0 : 1;
    _exit(wrong);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(File, ADescriptorThatIsAnothersIsLeftAlone) {
  const Scratch scratch;
  const fs::path theirs = scratch.path() / "theirs";
  std::ofstream(theirs) << "their text";
  const auto path = scratch.path() / "ours";
  File ours = create_file(path);
  const int number = ours.fd();
  const int other = ::open(theirs.c_str(), O_RDWR);
  ASSERT_EQ(::dup2(other, number), number);  // closes ours
  EXPECT_EQ(reason_of([&] { write_at(ours, 0, "frame", path); }), "descriptor");
  EXPECT_FALSE(cut_file(ours, 0));
  ours.close();
  EXPECT_NE(::fcntl(number, F_GETFD), -1) << "their descriptor was closed";
  ::close(number);
  ::close(other);
  EXPECT_EQ(read_file(theirs), "their text");
}

TEST(File, CreationNeverFollowsOrReuses) {
  const Scratch scratch;
  const fs::path target = scratch.path() / "target";
  fs::create_symlink(target, scratch.path() / "link");
  EXPECT_EQ(reason_of([&] { create_file(scratch.path() / "link"); }), "exists");
  EXPECT_FALSE(fs::exists(target));
  create_file(target);
  EXPECT_EQ(reason_of([&] { create_file(target); }), "exists");
  EXPECT_EQ(reason_of([&] { create_file(scratch.path() / "gone" / "f"); }), "gone");
}

TEST(File, AtomicWriteReplacesAPlantedLinkInsteadOfFollowingIt) {
  const Scratch scratch;
  const fs::path victim = scratch.path() / "victim";
  write_atomically(victim, "untouched");
  fs::create_symlink(victim, scratch.path() / "out");
  fs::create_symlink(victim, scratch.path() / "out.tmp");
  write_atomically(scratch.path() / "out", "new");
  EXPECT_EQ(read_file(victim), "untouched");
  EXPECT_EQ(read_file(scratch.path() / "out"), "new");
  EXPECT_FALSE(fs::is_symlink(scratch.path() / "out"));
  EXPECT_FALSE(fs::exists(scratch.path() / "out.tmp"));
}

TEST(File, DescriptorsCloseOnExec) {
  const Scratch scratch;
  const File file = create_file(scratch.path() / "f");
  EXPECT_NE(::fcntl(file.fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(File, FullDeviceSaysNoSpace) {
  const File full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(full.is_open());
  EXPECT_EQ(reason_of([&] { write_at(full, 0, "x", "/dev/full"); }), "no_space");
}

TEST(File, NoDescriptorsLeft) {
  const Scratch scratch;
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  rlimit none = before;
  none.rlim_cur = 0;
  ::setrlimit(RLIMIT_NOFILE, &none);
  const std::string reason = reason_of([&] { create_file(scratch.path() / "f"); });
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(reason, "no_descriptors");
}

TEST(File, SizeLimit) {
  const Scratch scratch;
  const File file = create_file(scratch.path() / "f");
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 100;
  ::setrlimit(RLIMIT_FSIZE, &small);
  const std::string reason = reason_of([&] { write_at(file, 0, std::string(200, 'x'), "f"); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(reason, "file_limit");
}

TEST(File, LinkedSizeNoticesDeletion) {
  const Scratch scratch;
  const fs::path path = scratch.path() / "f";
  const File file = create_file(path);
  write_at(file, 0, "12345", path);
  EXPECT_EQ(linked_size(file, path), 5);
  fs::remove(path);
  EXPECT_EQ(linked_size(file, path), -1);
}

TEST(File, OverWhatIsThereGoesWhatFitsIntoItsRoom) {
  const Scratch scratch;
  const fs::path path = scratch.path() / "f";
  write_atomically(path, std::string(10, 'x'));
  write_over(path, "short");
  EXPECT_EQ(read_file(path), "short     ");
  write_over(path, "longer than before");
  EXPECT_EQ(read_file(path), "longer than before");
  EXPECT_EQ(reason_of([&] { write_over(path, std::string(1 << 20, 'y')); }), "no_space");
  EXPECT_EQ(read_file(path), "longer than before");
  EXPECT_EQ(reason_of([&] { write_over(scratch.path() / "none", "x"); }), "gone");
}

TEST(File, ReadingTheBeginning) {
  const Scratch scratch;
  const fs::path path = scratch.path() / "f";
  write_atomically(path, "0123456789");
  EXPECT_EQ(read_beginning(path, 4), "0123");
  EXPECT_EQ(read_beginning(path, 40), "0123456789");
  ASSERT_EQ(::mkfifo((scratch.path() / "pipe").c_str(), 0640), 0);
  EXPECT_EQ(reason_of([&] { read_beginning(scratch.path() / "pipe", 4); }), "io_error");
}

TEST(File, ReadingOddThings) {
  const Scratch scratch;
  ASSERT_EQ(::mkfifo((scratch.path() / "pipe").c_str(), 0640), 0);
  EXPECT_EQ(reason_of([&] { read_file(scratch.path() / "pipe"); }), "io_error");
  EXPECT_EQ(reason_of([&] { read_file(scratch.path()); }), "io_error");
  EXPECT_EQ(reason_of([&] { read_file(scratch.path() / "none"); }), "gone");
  write_atomically(scratch.path() / "f", std::string(10, 'x'));
  EXPECT_EQ(reason_of([&] { read_file(scratch.path() / "f", 9); }), "file_limit");
}

#if defined(TRAINMON_FAILPOINTS)
TEST(File, ShortAndInterruptedWritesAreFinished) {
  const Scratch scratch;
  const fs::path path = scratch.path() / "f";
  const std::string text(1000, 'y');
  const File file = create_file(path);
  set_failpoints("file.write=short:7@1;file.write=errno:" + std::to_string(EINTR) + "@2");
  write_at(file, 0, text, path);
  EXPECT_EQ(failpoint_hits("file.write"), 3);
  set_failpoints("");
  EXPECT_EQ(read_file(path), text);
}

TEST(File, AFailedAtomicWriteLeavesTheOldContentAndNoTemporary) {
  const Scratch scratch;
  const fs::path path = scratch.path() / "f";
  write_atomically(path, "old");
  set_failpoints("file.write=short:1@1;file.write=errno:" + std::to_string(ENOSPC) + "@2");
  EXPECT_EQ(reason_of([&] { write_atomically(path, "new"); }), "no_space");
  set_failpoints("");
  EXPECT_EQ(read_file(path), "old");
  EXPECT_FALSE(fs::exists(path.string() + ".tmp"));
}
#endif

TEST(FileInPieces, GivesWhatTheFileHoldsInAnyOrderAndLength) {
  const Scratch scratch;
  const std::filesystem::path path = scratch.path() / "f";
  std::string content(3 << 20, '\0');
  for (std::size_t i = 0; i < content.size(); ++i)
    content[i] = static_cast<char>(i * 2654435761u >> 24);
  write_atomically(path, content);
  FileInPieces file(path);
  std::uint64_t random = 1;
  const auto below = [&](std::size_t end) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::size_t>(random >> 33) % end;
  };
  for (int i = 0; i < 300; ++i) {
    const std::size_t offset = below(content.size() + 100);
    const std::size_t size = below(i % 10 == 0 ? 2 << 20 : 5000);
    const std::string_view expected =
        offset < content.size() ? std::string_view(content).substr(offset, size) : "";
    EXPECT_TRUE(file.read(static_cast<std::int64_t>(offset), size) == expected)
        << size << " bytes at " << offset;
  }
}

}  // namespace
}  // namespace trainmon
