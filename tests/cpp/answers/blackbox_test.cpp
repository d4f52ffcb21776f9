// Rings of ranks that never ran: who is said to keep whom waiting.
#include "answers/blackbox.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <memory>

#include "base/file.h"
#include "recorder/flight_recorder.h"
#include "scratch.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

class NoSeries final : public SeriesTable {
 public:
  const Series& at(SeriesId) const override { std::abort(); }
  std::size_t size() const override { return 0; }
};

// One rank's recorder, told of calls in words.
class Rank {
 public:
  Rank(const fs::path& run, int rank, int world_size, int restart = 0) {
    char name[48];
    std::snprintf(name, sizeof name, "rank_%05d/restart_%04d", rank, restart);
    RunInfo info;
    info.directory = run / name;
    info.rank = rank;
    info.world_size = world_size;
    info.restart = restart;
    make_directories(info.directory);
    recorder_ = std::make_unique<FlightRecorder>(info, series_, flight::kLeastBytes);
  }
  FlightRecorder& recorder() { return *recorder_; }

  void enters(const char* operation, const char* group = "0", const char* ranks = "*") {
    call_ = {};
    call_.operation = recorder_->word(operation);
    call_.group = recorder_->group(group, ranks);
    call_.number = ++numbers_[call_.group];
    recorder_->collective(call_, 4);
  }
  void leaves() {
    call_.enters = false;
    recorder_->collective(call_, 4);
  }
  void passes(const char* operation, const char* group = "0", const char* ranks = "*") {
    enters(operation, group, ranks);
    leaves();
  }

 private:
  NoSeries series_;
  std::unique_ptr<FlightRecorder> recorder_;
  std::map<std::uint32_t, std::uint64_t> numbers_;
  CollectiveCall call_;
};

using Inside = std::map<std::string, std::vector<int>>;

TEST(BlackBox, ARankThatHasNotEntered) {
  const Scratch scratch;
  Rank a(scratch.path(), 0, 3), b(scratch.path(), 1, 3), c(scratch.path(), 2, 3);
  for (Rank* rank : {&a, &b, &c}) rank->passes("all_reduce");
  a.enters("all_gather");
  c.enters("all_gather");
  const BlackBox box = read_black_box(scratch.path());
  ASSERT_EQ(box.stuck.size(), 1u);
  EXPECT_EQ(box.stuck[0].number, 2u);
  EXPECT_EQ(box.stuck[0].inside, (Inside{{"all_gather", {0, 2}}}));
  EXPECT_EQ(box.stuck[0].absent, std::vector<int>{1});
  EXPECT_TRUE(box.stuck[0].unknown.empty());
  ASSERT_EQ(box.ranks.size(), 3u);
  EXPECT_TRUE(box.ranks[1].inside.empty());
  EXPECT_EQ(box.ranks[1].last->operation, "all_reduce");
}

TEST(BlackBox, RanksThatDisagree) {
  const Scratch scratch;
  Rank a(scratch.path(), 0, 2), b(scratch.path(), 1, 2);
  a.enters("all_reduce");
  b.enters("broadcast");
  const BlackBox box = read_black_box(scratch.path());
  ASSERT_EQ(box.stuck.size(), 1u);
  EXPECT_EQ(box.stuck[0].inside, (Inside{{"all_reduce", {0}}, {"broadcast", {1}}}));
  EXPECT_TRUE(box.stuck[0].absent.empty());
}

TEST(BlackBox, OnlyRanksOfTheGroupAreWaitedFor) {
  const Scratch scratch;
  Rank a(scratch.path(), 0, 6), b(scratch.path(), 1, 6), c(scratch.path(), 4, 6);
  a.enters("reduce", "tp", "0,3-5");
  const BlackBox box = read_black_box(scratch.path());
  ASSERT_EQ(box.stuck.size(), 1u);
  EXPECT_EQ(box.stuck[0].group, "tp");
  EXPECT_EQ(box.stuck[0].absent, std::vector<int>{4});
  EXPECT_EQ(box.stuck[0].unknown, (std::vector<int>{3, 5}));  // they left no recorder
  EXPECT_EQ(box.without, (std::vector<int>{2, 3, 5}));
}

TEST(BlackBox, ARankWhoseCallsAreOverwrittenDoesNotTell) {
  const Scratch scratch;
  Rank a(scratch.path(), 0, 2), b(scratch.path(), 1, 2);
  b.passes("all_reduce");
  for (std::uint64_t i = 0; i < 2 * b.recorder().slots(); ++i) {
    b.recorder().stage(FlightStage::forward_begin, 0, 9, 9);
  }
  a.enters("all_reduce");
  const BlackBox box = read_black_box(scratch.path());
  ASSERT_EQ(box.stuck.size(), 1u);
  EXPECT_TRUE(box.stuck[0].absent.empty());
  EXPECT_EQ(box.stuck[0].unknown, std::vector<int>{1});
  EXPECT_EQ(box.ranks[1].step, 9);
  EXPECT_EQ(box.ranks[1].place, "in the forward");
  EXPECT_GT(box.ranks[1].overwritten, 0u);
}

TEST(BlackBox, CallsFromPointToPointAreShownAndHeldAgainstNobody) {
  const Scratch scratch;
  Rank a(scratch.path(), 0, 2), b(scratch.path(), 1, 2);
  CollectiveCall call;
  call.is_point_to_point = true;
  call.operation = a.recorder().word("recv");
  call.number = 1;
  a.recorder().collective(call, 0);
  const BlackBox box = read_black_box(scratch.path());
  EXPECT_TRUE(box.stuck.empty());
  ASSERT_EQ(box.ranks[0].inside.size(), 1u);
  EXPECT_EQ(box.ranks[0].inside[0].operation, "recv");
}

TEST(BlackBox, TheNewestStartCounts) {
  const Scratch scratch;
  Rank old_a(scratch.path(), 0, 3), old_b(scratch.path(), 1, 3), old_c(scratch.path(), 2, 3);
  old_a.enters("all_reduce");
  Rank a(scratch.path(), 0, 2, 1), b(scratch.path(), 1, 2, 1);
  a.passes("barrier");
  const BlackBox box = read_black_box(scratch.path());
  EXPECT_TRUE(box.stuck.empty());
  EXPECT_TRUE(box.without.empty());
  ASSERT_EQ(box.ranks.size(), 2u);  // the third is of a start that is over
  EXPECT_EQ(box.ranks[0].restart, 1);
}

// As a damaged file may claim.
TEST(BlackBox, ARankBeyondItsOwnWorldSizeIsTold) {
  for (const int world_size : {-1, 0, 1}) {
    const Scratch scratch;
    const Rank a(scratch.path(), 1, world_size);
    const BlackBox box = read_black_box(scratch.path());
    ASSERT_EQ(box.ranks.size(), 1u) << world_size;
    EXPECT_EQ(box.ranks[0].rank, 1);
  }
}

TEST(BlackBox, RanksOfAGroupThatNobodyCanHave) {
  for (const char* ranks :
       {"0-4000000000", "-1", "3-1", "0-1,0-1,0-1,0-1", "0,,1", "a", "0-", "7"}) {
    const Scratch scratch;
    Rank a(scratch.path(), 0, 2), b(scratch.path(), 1, 2);
    a.enters("all_reduce", "0", ranks);
    const BlackBox box = read_black_box(scratch.path());
    ASSERT_EQ(box.stuck.size(), 1u) << ranks;
    EXPECT_TRUE(box.stuck[0].absent.empty()) << ranks;
  }
}

// Twenty calls that a million ranks lack would be twenty million numbers.
TEST(BlackBox, CallsThatLackTooManyRanksAreCountedAndLeftOut) {
  const Scratch scratch;
  Rank a(scratch.path(), 0, 1 << 20);
  for (int i = 0; i < 20; ++i) a.enters("all_reduce");
  const BlackBox box = read_black_box(scratch.path());
  ASSERT_EQ(box.stuck.size(), 5u);
  for (const StuckCollective& one : box.stuck) EXPECT_EQ(one.unknown.size(), (1u << 20) - 1);
  ASSERT_EQ(box.damage.size(), 1u);
  EXPECT_EQ(box.damage.front().what, "15 calls more that hang are left out");
}

TEST(BlackBox, TimesThatCannotBeAreNoWait) {
  FlightRank rank;
  FlightCall call;
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
  rank.seen_ns = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t since : {kLeast, std::int64_t{-1}, std::int64_t{0}, rank.seen_ns}) {
    call.since_ns = since;
    EXPECT_EQ(waited_ns(rank, call), 0) << since;
  }
  call.since_ns = rank.seen_ns - 5;
  EXPECT_EQ(waited_ns(rank, call), 5);
}

TEST(BlackBox, ALinkInThePlaceOfARecorderIsNotCopied) {
  const Scratch scratch;
  { const Rank a(scratch.path(), 0, 1); }
  const fs::path file = read_black_box(scratch.path()).ranks.front().file;
  fs::rename(file, scratch.path() / "elsewhere");
  fs::create_symlink(scratch.path() / "elsewhere", file);
  EXPECT_THROW(freeze_black_box(scratch.path()), std::runtime_error);
  EXPECT_FALSE(fs::exists(scratch.path() / "frozen_0001"));
}

TEST(BlackBox, AFrozenCopyIsReadAsTheRunWas) {
  const Scratch scratch;
  Rank a(scratch.path(), 0, 2), b(scratch.path(), 1, 2);
  a.enters("all_reduce");
  const fs::path first = freeze_black_box(scratch.path());
  EXPECT_EQ(first, scratch.path() / "frozen_0001");
  b.enters("all_reduce");
  EXPECT_EQ(read_black_box(first).stuck.at(0).absent, std::vector<int>{1});
  EXPECT_TRUE(read_black_box(scratch.path()).stuck.at(0).absent.empty());
  EXPECT_EQ(freeze_black_box(scratch.path()), scratch.path() / "frozen_0002");
}

TEST(BlackBox, ARunWithoutOneSaysHowToHaveOne) {
  const Scratch scratch;
  make_directories(scratch.path() / "rank_00000" / "restart_0000");
  try {
    read_black_box(scratch.path());
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("recorder_mb=64"), std::string::npos);
  }
}

}  // namespace
}  // namespace trainmon
