// Files that several processes append to: writers killed at any moment, locks, faults of the disk.
#include "sinks/shared_csv.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <map>
#include <random>
#include <thread>

#include "base/failpoint.h"
#include "file_content.h"
#include "scratch.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

class Shared : public ::testing::Test {
 protected:
  void append(const std::string& text) {
    SharedCsv csv{path, "writer,number,text\r\n", text};
    append_together({&csv, 1});
  }
  void TearDown() override { set_failpoints(""); }

  Scratch scratch;
  fs::path path = scratch.path() / "deep" / "shared.csv";
};

TEST_F(Shared, BeginsWithOneHeaderAndGrows) {
  append("");
  EXPECT_EQ(content(path), "writer,number,text\r\n");
  append("0,0,a\r\n");
  append("1,0,b\r\n");
  EXPECT_EQ(content(path), "writer,number,text\r\n0,0,a\r\n1,0,b\r\n");
}

TEST_F(Shared, RepairsWhatAKilledWriterLeft) {
  const std::string sound = "writer,number,text\r\n0,0,a\r\n";
  const std::string line = "1,1,bbbbbbbb\r\n";
  for (const std::size_t long_line : {0, 255, 256, 257, 5000, 2000000}) {
    const std::string torn = line + std::string(long_line, 'x') + "\r";
    for (const std::size_t cut : {std::size_t{1}, line.size() - 1, line.size(), torn.size()}) {
      append("");
      put(path, sound + torn.substr(0, cut));
      append("2,2,c\r\n");
      const std::string whole = cut < line.size() ? sound : sound + line;
      EXPECT_EQ(content(path), whole + "2,2,c\r\n") << long_line << " " << cut;
    }
  }
  for (std::size_t cut = 0; cut < 20; ++cut) {
    put(path, sound.substr(0, cut));
    append("2,2,c\r\n");
    EXPECT_EQ(content(path), "writer,number,text\r\n2,2,c\r\n") << cut;
  }
}

TEST_F(Shared, LeavesOtherFilesAlone) {
  append("");
  for (const std::string there :
       {"writer,other\r\n1,2\r\n", "notes without an end", "\r\n", "writer,number,text\n0,0,a\n"}) {
    put(path, there);
    EXPECT_EQ(reason_of([&] { append("0,0,a\r\n"); }), "other_columns");
    EXPECT_EQ(content(path), there);
  }
  fs::remove(path);
  fs::create_symlink(scratch.path() / "elsewhere", path);
  EXPECT_EQ(reason_of([&] { append("0,0,a\r\n"); }), "link");
}

TEST_F(Shared, DoesNotWaitForEverForALock) {
  append("0,0,a\r\n");
  const int held = open(path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(held, LOCK_EX), 0);
  SharedCsv csv{path, "writer,number,text\r\n", "1,0,b\r\n"};
  const auto patience = std::chrono::milliseconds(20);
  EXPECT_EQ(reason_of([&] { append_together({&csv, 1}, patience); }), "locked");
  EXPECT_EQ(content(path), "writer,number,text\r\n0,0,a\r\n");
  close(held);
  append_together({&csv, 1}, patience);
  EXPECT_EQ(content(path), "writer,number,text\r\n0,0,a\r\n1,0,b\r\n");
}

// A data loader's worker, say, which has a copy of every descriptor.
TEST_F(Shared, AProcessForkedInTheMiddleKeepsNoLock) {
  append("0,0,a\r\n");
  SharedCsv csv{path, "writer,number,text\r\n", "1,0,b\r\n"};
  set_failpoints("file.write=sleep:200");
  std::thread writer([&] { append_together({&csv, 1}); });
  while (failpoint_hits("file.write") == 0) std::this_thread::yield();
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  writer.join();
  SharedCsv more{path, "writer,number,text\r\n", "2,0,c\r\n"};
  EXPECT_EQ(reason_of([&] { append_together({&more, 1}, std::chrono::milliseconds(20)); }), "");
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(content(path), "writer,number,text\r\n0,0,a\r\n1,0,b\r\n2,0,c\r\n");
}

TEST_F(Shared, AppendsWithoutLocksWhereThereAreNone) {
  set_failpoints("shared_csv.lock=errno:37+");  // ENOLCK
  append("0,0,a\r\n");
  append("1,0,b\r\n");
  EXPECT_EQ(content(path), "writer,number,text\r\n0,0,a\r\n1,0,b\r\n");
  set_failpoints("shared_csv.lock=errno:5+");  // EIO
  EXPECT_EQ(reason_of([&] { append("0,1,a\r\n"); }), "io_error");
}

TEST_F(Shared, AllFilesOrNone) {
  std::array<SharedCsv, 2> files = {
      SharedCsv{scratch.path() / "b.csv", "x\r\n", "1\r\n"},
      SharedCsv{scratch.path() / "a.csv", "y\r\n", "2\r\n"},
  };
  append_together(files);
  EXPECT_EQ(files[0].text + files[1].text, "");
  for (const char* fault :
       {"file.write=errno:28", "file.write=errno:28@2", "file.write=short:2@1;file.write=errno:5@2",
        "file.write=short:1@2;file.write=errno:28@3"}) {
    files[0].text = files[1].text = "lost\r\n";
    set_failpoints(fault);
    EXPECT_THROW(append_together(files), SinkError) << fault;
    set_failpoints("");
    EXPECT_EQ(content(files[0].path), "x\r\n1\r\n") << fault;
    EXPECT_EQ(content(files[1].path), "y\r\n2\r\n") << fault;
    EXPECT_EQ(files[0].text, "lost\r\n");
  }
  append_together(files);
  EXPECT_EQ(content(files[1].path), "y\r\n2\r\nlost\r\n");
}

// One writer: blocks of lines with its number and theirs, each acknowledged once it was appended.
// The length of a line's text follows from its number, so a torn one shows.
constexpr int kLines = 4000;

std::string line_of(int writer, int number) {
  const auto length = static_cast<std::size_t>(number * 7919 % 200);
  return std::to_string(writer) + "," + std::to_string(number) + "," + std::string(length, 'x') +
         "\r\n";
}

[[noreturn]] void write_lines(const fs::path& path, int writer, int acknowledge) {
  std::mt19937 random(static_cast<unsigned>(writer));
  // Some die in the middle of a write.
  if (writer % 3 == 0) {
    const std::string at = std::to_string(random() % 100 + 1);
    set_failpoints("file.write=short:" + std::to_string(random() % 60) + "@" + at +
                   ";file.write=kill@" + std::to_string(std::stoi(at) + 1));
  }
  for (int number = 0; number < kLines;) {
    SharedCsv csv{path, "writer,number,text\r\n", ""};
    for (int n = static_cast<int>(random() % 40 + 1); n > 0 && number < kLines; --n) {
      csv.text += line_of(writer, number++);
    }
    try {
      append_together({&csv, 1});
    } catch (const std::exception&) {
      _exit(3);
    }
    if (write(acknowledge, &number, sizeof number) != sizeof number) _exit(4);
  }
  _exit(0);
}

struct Writer {
  pid_t process = 0;
  int end = -1;
};

Writer start_writer(const fs::path& path, int writer) {
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    write_lines(path, writer, ends[1]);
  }
  close(ends[1]);
  return {child, ends[0]};
}

// Lines acknowledged by a writer that has ended.
int acknowledged(const Writer& writer) {
  int number = 0;
  int last = 0;
  while (read(writer.end, &number, sizeof number) == sizeof number) last = number;
  close(writer.end);
  return last;
}

TEST_F(Shared, EightProcessesAreKilledAndNoLineIsTornOrLost) {
  constexpr int kAtOnce = 8;
  std::mt19937 random(20240607);
  std::map<int, Writer> writers;
  int next = 0;
  while (next < kAtOnce) {
    writers[next] = start_writer(path, next);
    ++next;
  }
  std::map<int, int> least;  // lines of each writer that must be there
  int killed = 0;
  std::vector<std::pair<int, Writer>> alive(writers.begin(), writers.end());
  for (int round = 0; round < 32; ++round) {
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 4000));
    auto& [number, writer] = alive[random() % alive.size()];
    kill(writer.process, SIGKILL);
    int status = 0;
    waitpid(writer.process, &status, 0);
    killed += WIFSIGNALED(status) ? 1 : 0;
    least[number] = acknowledged(writer);
    number = next++;
    writer = start_writer(path, number);
  }
  for (const auto& [number, writer] : alive) {
    least[number] = acknowledged(writer);
    int status = 0;
    waitpid(writer.process, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0) << WEXITSTATUS(status);
  }
  EXPECT_GT(killed, 0);
  append("");  // the repair of what the last one left, if it was killed
  std::string text = content(path);
  const std::string header = "writer,number,text\r\n";
  ASSERT_TRUE(text.starts_with(header));
  std::map<int, int> found;
  for (std::size_t at = header.size(); at < text.size();) {
    const std::size_t end = text.find("\r\n", at) + 2;
    ASSERT_NE(end, std::string::npos + 2);
    const std::string line = text.substr(at, end - at);
    const int writer = std::stoi(line);
    ASSERT_EQ(line, line_of(writer, found[writer])) << writer;
    ++found[writer];
    at = end;
  }
  for (const auto& [writer, lines] : least) EXPECT_GE(found[writer], lines) << writer;
}

}  // namespace
}  // namespace trainmon
