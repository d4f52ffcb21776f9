// Lines reach the hook whole and printable, and a storm of one topic stays one line.
#include "base/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/console.h"

namespace trainmon {
namespace {

std::vector<std::string>& lines() {
  static std::vector<std::string> list;
  return list;
}

class Log : public testing::Test {
 protected:
  void SetUp() override {
    lines().clear();
    before_ = set_log_hook([](std::string_view line) { lines().emplace_back(line); });
  }
  void TearDown() override { set_log_hook(before_); }

 private:
  LogHook before_ = nullptr;
};

TEST_F(Log, LinesArePrintable) {
  log_line("two\nlines \x1b[2J");
  EXPECT_EQ(lines(), std::vector<std::string>{"two\\x0alines \\x1b[2J"});
}

TEST_F(Log, LimitedPerTopicWithACount) {
  for (int i = 0; i < 5; ++i) log_line_limited("disk", "disk is full", 3600.0);
  log_line_limited("queue", "queue is full", 3600.0);
  ASSERT_EQ(lines().size(), 2u);
  log_line_limited("disk", "disk is full", 0.0);
  EXPECT_EQ(lines().back(), "disk is full (4 more like it before)");
}

TEST_F(Log, TheDefaultIsOneWriteToStderr) {
  set_log_hook(nullptr);
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const int saved = ::dup(2);
  ::dup2(ends[1], 2);
  log_line("rank 3: a NaN");
  ::dup2(saved, 2);
  ::close(saved);
  std::array<char, 100> buffer{};
  const ssize_t size = ::read(ends[0], buffer.data(), buffer.size());
  ::close(ends[0]);
  ::close(ends[1]);
  ASSERT_GT(size, 0);
  EXPECT_EQ(std::string(buffer.data(), static_cast<std::size_t>(size)),
            "trainmon: rank 3: a NaN\n");
}

// What a terminal would get.
std::string on_a_terminal(void (*write)(std::string_view) noexcept, std::string_view line) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0 || ::grantpt(terminal) != 0 || ::unlockpt(terminal) != 0) return "no terminal";
  const int other_end = ::open(::ptsname(terminal), O_RDWR | O_NOCTTY);
  const int saved = ::dup(2);
  ::dup2(other_end, 2);
  write(line);
  ::dup2(saved, 2);
  ::close(saved);
  std::array<char, 200> buffer{};
  const ssize_t size = ::read(terminal, buffer.data(), buffer.size());
  ::close(other_end);
  ::close(terminal);
  return {buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0))};
}

TEST_F(Log, WarningsAreYellowOnATerminalThatMayBe) {
  log_warning("a\x1b[31m");  // to a hook: never
  EXPECT_EQ(lines(), std::vector<std::string>{"a\\x1b[31m"});
  set_log_hook(nullptr);
  ::unsetenv("NO_COLOR");
  EXPECT_EQ(on_a_terminal(log_warning, "an alert"), "trainmon: \x1b[33man alert\x1b[0m\r\n");
  EXPECT_EQ(on_a_terminal(log_line, "no alert"), "trainmon: no alert\r\n");
  ::setenv("NO_COLOR", "1", 1);
  EXPECT_EQ(on_a_terminal(log_warning, "an alert"), "trainmon: an alert\r\n");
  ::unsetenv("NO_COLOR");
}

// With SIGPIPE as it is by default, which ends a process.
TEST(Console, ABrokenPipeIsNoSignal) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  close(ends[0]);
  EXPECT_FALSE(write_at_once(ends[1], "nobody reads\n"));
  close(ends[1]);
  EXPECT_FALSE(write_at_once(ends[1], "closed\n"));
}

TEST(Console, AFullPipeIsNotWaitedForAndKeepsItsFlags) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  const std::string line(1000, 'x');
  int lines = 0;
  while (write_at_once(ends[1], line)) ++lines;
  EXPECT_GT(lines, 10);
  EXPECT_EQ(fcntl(ends[1], F_GETFL) & O_NONBLOCK, 0);
  std::string read_back(static_cast<std::size_t>(lines) * line.size(), ' ');
  std::size_t done = 0;
  while (done < read_back.size()) {
    const ssize_t got = read(ends[0], read_back.data() + done, read_back.size() - done);
    ASSERT_GT(got, 0);
    done += static_cast<std::size_t>(got);
  }
  EXPECT_EQ(read_back.find_first_not_of('x'), std::string::npos);
  EXPECT_TRUE(write_at_once(ends[1], line));
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace trainmon
