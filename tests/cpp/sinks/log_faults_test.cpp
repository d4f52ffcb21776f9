// The contract of Sink under faults: a batch whose write() threw is never read back, every other
// is.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <functional>

#include "base/failpoint.h"
#include "base/file.h"
#include "base/log.h"
#include "read/log.h"
#include "records.h"
#include "scratch.h"
#include "sinks/sinks.h"
#include "trainmon/read.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

// A log under test and the batches it said it took.
class LogFaults : public testing::Test {
 protected:
  LogFaults() : random_(1), directory_(scratch_.path() / "rank_00000" / "restart_0000") {
    before_ = set_log_hook([](std::string_view) {});
    for (int i = 0; i < 20; ++i) series_.add(random_.series());
  }
  ~LogFaults() override { set_log_hook(before_); }

  void open(std::size_t segment_bytes) {
    make_directories(directory_);
    log_ = make_log_sink(segment_bytes);
    RunInfo run;
    run.directory = directory_;
    log_->open(run, series_);
  }

  // The reason it was refused, "" when it was taken.
  std::string write() {
    const RecordBatch batch = random_.batch(next_number_++, series_.size());
    try {
      log_->write(batch);
    } catch (const SinkError& error) {
      return error.reason();
    }
    taken_.push_back(batch);
    return "";
  }

  void expect_taken_is_read() {
    const LogContents contents = read_log(directory_, 0, 0);
    EXPECT_TRUE(same(contents.batches, taken_))
        << contents.batches.size() << " batches read, " << taken_.size() << " taken";
    for (const Damage& damage : contents.damage) {
      ADD_FAILURE() << damage.file << " " << damage.offset << ": " << damage.what;
    }
  }

  Scratch scratch_;
  RandomRecords random_;
  const fs::path directory_;
  ListedSeries series_;
  std::unique_ptr<Sink> log_;
  std::vector<RecordBatch> taken_;
  std::uint64_t next_number_ = 0;
  LogHook before_ = nullptr;
};

// Runs `action` when no descriptor is left.
std::string without_descriptors(const std::function<std::string()>& action) {
#if defined(__SANITIZE_ADDRESS__)
  // The sanitizer itself needs descriptors to look at exceptions.
  set_failpoints("file.open=errno:" + std::to_string(EMFILE) + "@1+");
  const std::string result = action();
  set_failpoints("");
#else
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  rlimit none = before;
  none.rlim_cur = 3;
  ::setrlimit(RLIMIT_NOFILE, &none);
  const std::string result = action();
  ::setrlimit(RLIMIT_NOFILE, &before);
#endif
  return result;
}

TEST_F(LogFaults, NoDescriptorsLeftKeepsTheOpenSegmentInUse) {
  open(1);
  EXPECT_EQ(write(), "");
  const std::string reason = without_descriptors([this] { return write(); });
  EXPECT_EQ(reason, "");
  EXPECT_EQ(write(), "");
  expect_taken_is_read();
}

TEST_F(LogFaults, NoDescriptorsLeftAfterADeletionIsSaidAndHeals) {
  open(1 << 20);
  EXPECT_EQ(write(), "");
  fs::remove_all(scratch_.path() / "rank_00000");
  const std::string reason = without_descriptors([this] { return write(); });
  EXPECT_EQ(reason, "no_descriptors");
  EXPECT_EQ(write(), "");
  const LogContents contents = read_log(directory_, 0, 0);
  ASSERT_EQ(contents.batches.size(), 1u);
  EXPECT_EQ(contents.batches.front().gaps.back().reason, "deleted");
}

TEST_F(LogFaults, AFileAtItsLimitIsFollowedByAnother) {
  open(1 << 20);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 30000;
  ::setrlimit(RLIMIT_FSIZE, &small);
  int refused = 0;
  for (int i = 0; i < 60; ++i) {
    const std::string reason = write();
    EXPECT_TRUE(reason.empty() || reason == "file_limit") << reason;
    refused += reason.empty() ? 0 : 1;
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_GE(refused, 1);
  EXPECT_GT(taken_.size(), 40u);
  expect_taken_is_read();
}

TEST_F(LogFaults, AMovedDirectoryKeepsItsRowsAndLaterOnesAreWhereTheyShouldBe) {
  open(1 << 20);
  static std::string said;
  said.clear();
  set_log_hook([](std::string_view line) { said += line; });
  for (int i = 0; i < 5; ++i) EXPECT_EQ(write(), "");
  const fs::path moved = scratch_.path() / "moved";
  fs::rename(scratch_.path() / "rank_00000", moved);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(write(), "");
  EXPECT_NE(said.find("was moved, with its rows"), std::string::npos) << said;
  EXPECT_EQ(log_->rows_deleted(), 0);
  const std::vector<RecordBatch> taken = taken_;
  taken_.assign(taken.begin(), taken.begin() + 5);
  EXPECT_TRUE(same(read_log(moved / "restart_0000", 0, 0).batches, taken_));
  taken_.assign(taken.begin() + 5, taken.end());
  const LogContents contents = read_log(directory_, 0, 0);
  EXPECT_TRUE(same(contents.batches, taken_));
  ASSERT_EQ(contents.damage.size(), 1u);
  EXPECT_EQ(contents.damage.front().what, "segment 0 is missing");
}

// "deleted" are rows that were written. Readers take them for what the log had.
TEST_F(LogFaults, RowsThatAFileInThePlaceOfTheFolderCostsAreNotDeletedOnes) {
  open(1 << 20);
  EXPECT_EQ(write(), "");
  const fs::path rank = scratch_.path() / "rank_00000", aside = scratch_.path() / "aside";
  fs::rename(rank, aside);
  { const File in_the_way = create_file(rank); }
  EXPECT_EQ(write(), "gone");
  fs::remove(rank);
  fs::rename(aside, rank);
  EXPECT_EQ(write(), "");
}

TEST_F(LogFaults, ADeletedDirectoryIsMadeAgainAndTheLossIsInTheData) {
  open(1 << 20);
  std::int64_t lost_rows = 0;
  for (int i = 0; i < 5; ++i) EXPECT_EQ(write(), "");
  for (const RecordBatch& batch : taken_) lost_rows += batch.row_count();
  taken_.clear();
  fs::remove_all(scratch_.path() / "rank_00000");
  for (int i = 0; i < 5; ++i) EXPECT_EQ(write(), "");
  const LogContents contents = read_log(directory_, 0, 0);
  ASSERT_EQ(contents.batches.size(), 5u);
  const Gap& gap = contents.batches.front().gaps.back();
  EXPECT_EQ(gap.reason, "deleted");
  EXPECT_EQ(gap.rows, lost_rows);
  ASSERT_EQ(contents.damage.size(), 1u);
  EXPECT_EQ(contents.damage.front().what, "segment 0 is missing");
}

// The descriptors that are open for `path`.
std::vector<int> descriptors_of(const fs::path& path) {
  std::vector<int> found;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (fs::read_symlink(entry.path(), gone) == path) {
      found.push_back(std::stoi(entry.path().filename()));
    }
  }
  return found;
}

TEST_F(LogFaults, ADescriptorThatSomebodyElseTookIsLeftToHim) {
  open(1 << 20);
  EXPECT_EQ(write(), "");
  const fs::path theirs = scratch_.path() / "theirs";
  const std::vector<int> ours = descriptors_of(directory_ / "log-000000.tmlog");
  ASSERT_EQ(ours.size(), 1u);
  ::close(ours.front());
  const int taken = ::open(theirs.c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_EQ(taken, ours.front());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(write(), "");
  EXPECT_EQ(fs::file_size(theirs), 0u) << "frames went into a foreign file";
  log_->close();
  EXPECT_NE(::fcntl(taken, F_GETFD), -1);
  ::close(taken);
  expect_taken_is_read();
}

TEST_F(LogFaults, AClosedDescriptorIsFollowedByAnotherSegment) {
  open(1 << 20);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(write(), "");
    for (const fs::path name : {"log-000000.tmlog", "log-000001.tmlog"}) {
      for (const int ours : descriptors_of(directory_ / name)) ::close(ours);
    }
  }
  expect_taken_is_read();
}

TEST_F(LogFaults, ADeletedSegmentIsNoticed) {
  open(1 << 20);
  EXPECT_EQ(write(), "");
  fs::remove(directory_ / "log-000000.tmlog");
  EXPECT_EQ(write(), "");
  const LogContents contents = read_log(directory_, 0, 0);
  ASSERT_EQ(contents.batches.size(), 1u);
  EXPECT_EQ(contents.batches.front().number, 1u);
}

#if defined(TRAINMON_FAILPOINTS)

TEST_F(LogFaults, EveryErrorAtEveryWrite) {
  const std::vector<std::pair<int, std::string>> errors = {
      {ENOSPC, "no_space"}, {EIO, "io_error"},     {EDQUOT, "no_space"},
      {EROFS, "read_only"}, {EFBIG, "file_limit"}, {EACCES, "permission"}};
  for (const auto& [error, reason] : errors) {
    for (int hit = 1; hit <= 8; ++hit) {
      // Some bytes reach the file, then the error.
      fs::remove_all(scratch_.path() / "rank_00000");
      taken_.clear();
      next_number_ = 0;
      set_failpoints("");
      open(4000);
      const std::string at = "@" + std::to_string(hit);
      const std::string after = "@" + std::to_string(hit + 1);
      set_failpoints("file.write=short:100" + at + ";file.write=errno:" + std::to_string(error) +
                     after);
      int refused = 0;
      for (int i = 0; i < 12; ++i) {
        const std::string got = write();
        if (got.empty()) continue;
        EXPECT_EQ(got, reason);
        ++refused;
      }
      set_failpoints("");
      EXPECT_EQ(refused, 1);
      expect_taken_is_read();
    }
  }
}

TEST_F(LogFaults, ADiskThatCannotCutEitherGathersNoFiles) {
  open(1 << 20);
  set_failpoints("file.write=short:100;file.write=errno:28@2+;log.truncate=errno:28@1+");
  for (int i = 0; i < 50; ++i) EXPECT_EQ(write(), "no_space");
  set_failpoints("");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(write(), "");
  const fs::directory_iterator files(directory_);
  EXPECT_LE(std::distance(begin(files), end(files)), 2);
  expect_taken_is_read();
}

TEST_F(LogFaults, ADiskThatIsFullUntilTheEndLeavesNoEmptySegment) {
  const auto files = [&] {
    return std::distance(fs::directory_iterator(directory_), fs::directory_iterator());
  };
  open(2000);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(write(), "");
  const auto before = files();
  set_failpoints("file.write=errno:28@1+");
  for (int i = 0; i < 20 && files() == before; ++i) EXPECT_EQ(write(), "no_space");
  EXPECT_EQ(files(), before + 1);
  log_->close();
  set_failpoints("");
  EXPECT_EQ(files(), before);
  expect_taken_is_read();
}

TEST_F(LogFaults, DebrisThatCannotBeCutOffIsNeverRead) {
  open(1 << 20);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(write(), "");
  set_failpoints("file.write=short:700@1;file.write=errno:5@2;log.truncate=errno:5");
  EXPECT_EQ(write(), "io_error");
  set_failpoints("");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(write(), "");
  EXPECT_TRUE(fs::exists(directory_ / "log-000001.tmlog"));
  expect_taken_is_read();
}

TEST_F(LogFaults, ASegmentThatCannotBeOpenedIsDoneWithout) {
  open(2000);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(write(), "");
  set_failpoints("file.open=errno:" + std::to_string(EROFS) + "@1+");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(write(), "");
  set_failpoints("");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(write(), "");
  expect_taken_is_read();
}

TEST_F(LogFaults, AStormOfRandomFaults) {
  RandomRecords dice(77);
  for (int round = 0; round < 150; ++round) {
    fs::remove_all(scratch_.path() / "rank_00000");
    taken_.clear();
    next_number_ = 0;
    set_failpoints("");
    open(1000 + dice.below(6000));
    std::string spec;
    for (int i = 0; i < 12; ++i) {
      const std::string at = "@" + std::to_string(1 + dice.below(40));
      switch (dice.below(5)) {
        case 0:
          spec += "file.write=short:" + std::to_string(1 + dice.below(900)) + at + ";";
          break;
        case 1:
          spec += "file.open=errno:24" + at + ";";
          break;
        case 2:
          spec += "log.truncate=errno:5" + at + ";";
          break;
        default:
          spec += "file.write=errno:28" + at + ";";
      }
    }
    set_failpoints(spec);
    for (int i = 0; i < 25; ++i) write();
    set_failpoints("");
    expect_taken_is_read();
    if (HasFailure()) FAIL() << "round " << round << ": " << spec;
  }
}

#endif

}  // namespace
}  // namespace trainmon
