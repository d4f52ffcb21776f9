// What was recorded is read back, whatever the order of threads; what cannot be made is said.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <thread>

#include "base/failpoint.h"
#include "file_content.h"
#include "flight_events.h"
#include "scratch.h"

namespace trainmon {
namespace {

std::string made_in(const std::filesystem::path& directory) {
  const EightSeries series;
  return reason_of([&] { FlightRecorder(run_in(directory), series, flight::kLeastBytes); });
}

TEST(FlightRecorder, TellsWhoWroteItAndWhat) {
  const Scratch scratch;
  const EightSeries series;
  FlightRecorder recorder(run_in(scratch.path()), series, 1 << 20);
  recorder.row(row_of(5, 12), 13);
  Outcome outcome{1, 7, 8, 2, Fate::skipped, 1024.0, 4};
  recorder.outcome(outcome);
  recorder.scalar("loss", 7, std::nan(""));
  recorder.stage(FlightStage::backward_end, 0, 7, 8);
  CollectiveCall call;
  call.operation = recorder.word("all_reduce");
  call.group = recorder.group("0", "0-7");
  call.number = 41;
  call.bytes = 4096;
  recorder.collective(call, 8);
  call.enters = false;
  call.waits = true;
  call.is_point_to_point = true;
  recorder.collective(call, 8);
  Alert alert;
  alert.rule = "limit";
  alert.stat = "norm";
  alert.key.series = 6;
  alert.step = 9;
  alert.value = 3.0;
  recorder.alert(alert);
  recorder.close();

  const FlightRecord record = read_flight(recorder.path());
  EXPECT_EQ(record.rank, 3);
  EXPECT_EQ(record.world_size, 8);
  EXPECT_EQ(record.restart, 2);
  EXPECT_EQ(record.pid, ::getpid());
  EXPECT_EQ(record.run_id, "a run");
  EXPECT_TRUE(record.closed);
  EXPECT_TRUE(record.damage.empty());
  EXPECT_EQ(record.claimed, 7u);
  EXPECT_EQ(record.overwritten + record.unfinished + record.damaged + record.names_lost, 0u);
  ASSERT_EQ(record.events.size(), 7u);
  EXPECT_TRUE(is_true_row(record.events[0]));
  EXPECT_EQ(record.series.at(5), std::string("grad_reduced\0layers.5\0\0float32", 30));
  const flight::Slot& skipped = record.events[1];
  EXPECT_EQ(skipped.type, 2);
  EXPECT_EQ(skipped.detail, static_cast<int>(Fate::skipped));
  EXPECT_EQ(skipped.window, 7);
  EXPECT_EQ(skipped.step, 8);
  EXPECT_EQ(skipped.accum, 2);
  EXPECT_EQ(skipped.call, 4);
  EXPECT_EQ(skipped.optimizer, 1);
  EXPECT_EQ(skipped.values[0], 1024.0);
  EXPECT_EQ(record.word(record.events[2].id), "loss");
  EXPECT_TRUE(std::isnan(record.events[2].values[0]));
  EXPECT_EQ(record.events[3].detail, static_cast<int>(FlightStage::backward_end));
  const flight::Slot& entered = record.events[4];
  EXPECT_EQ(entered.type, 6);
  EXPECT_EQ(entered.detail, 0);
  EXPECT_EQ(record.word(entered.id), "all_reduce");
  EXPECT_EQ(record.groups.at(entered.group), std::string("0\0000-7", 5));
  EXPECT_EQ(entered.number, 41u);
  EXPECT_EQ(entered.count, 4096);
  EXPECT_EQ(record.events[5].type, 7);
  EXPECT_EQ(record.events[5].detail, flight::kWaits | flight::kPointToPoint);
  EXPECT_EQ(record.word(record.events[6].group), "limit");
  EXPECT_EQ(record.word(static_cast<std::uint32_t>(record.events[6].accum)), "norm");
  EXPECT_EQ(record.events[6].id, 6u);
  for (std::size_t i = 1; i < record.events.size(); ++i) {
    EXPECT_LE(record.events[i - 1].time_ns, record.events[i].time_ns);
  }
}

TEST(FlightRecorder, StatisticsOfARowWithNaNAreThoseOfTheTable) {
  const Scratch scratch;
  const EightSeries series;
  FlightRecorder recorder(run_in(scratch.path()), series, flight::kLeastBytes);
  Row row = row_of(2, 40);
  row.state.nans = 4;
  row.state.pos_infs = 2;
  row.state.neg_infs = 3;
  recorder.row(row, 41);
  const flight::Slot event = read_flight(recorder.path()).events.at(0);
  EXPECT_EQ(event.nans, 4);
  EXPECT_EQ(event.infs, 5);
  for (const double value : event.values) EXPECT_TRUE(std::isnan(value));
}

TEST(FlightRecorder, KeepsTheLastEventsAndCountsTheRest) {
  const Scratch scratch;
  const EightSeries series;
  FlightRecorder recorder(run_in(scratch.path()), series, flight::kLeastBytes);
  const auto slots = static_cast<std::int64_t>(recorder.slots());
  const std::int64_t last = 5 * slots + 17;
  for (std::int64_t i = 1; i <= last; ++i) recorder.row(row_of(0, i), i + 1);
  const FlightRecord record = read_flight(recorder.path());
  EXPECT_EQ(record.claimed, static_cast<std::uint64_t>(last));
  EXPECT_EQ(record.overwritten, static_cast<std::uint64_t>(last - slots));
  ASSERT_EQ(record.events.size(), recorder.slots());
  for (std::int64_t i = 0; i < slots; ++i) {
    ASSERT_EQ(record.events[static_cast<std::size_t>(i)].window, last - slots + 1 + i);
  }
}

TEST(FlightRecorder, ThreadsShareOneRing) {
  const Scratch scratch;
  const EightSeries series;
  FlightRecorder recorder(run_in(scratch.path()), series, 1 << 20);
  constexpr std::int64_t kEach = 800;
  ASSERT_GT(recorder.slots(), static_cast<std::uint64_t>(8 * kEach));
  std::vector<std::thread> threads;
  for (SeriesId id = 0; id < 8; ++id) {
    threads.emplace_back([&recorder, id] {
      for (std::int64_t i = 0; i < kEach; ++i) recorder.row(row_of(id, i), i + 1);
      recorder.word("word " + std::to_string(id % 3));
    });
  }
  for (std::thread& thread : threads) thread.join();
  const FlightRecord record = read_flight(recorder.path());
  std::vector<std::int64_t> next(8, 0);
  for (const flight::Slot& event : record.events) {
    ASSERT_TRUE(is_true_row(event));
    ASSERT_EQ(event.window, next[event.id]++);  // of one thread in its order, none missing
  }
  EXPECT_EQ(next, std::vector<std::int64_t>(8, kEach));
  EXPECT_EQ(record.series.size(), 8u);
  EXPECT_EQ(record.words.size(), 3u);
}

TEST(FlightRecorder, NamesBeyondTheRoomAreCounted) {
  const Scratch scratch;
  const EightSeries series;
  FlightRecorder recorder(run_in(scratch.path()), series, flight::kLeastBytes);
  std::uint64_t lost = 0;
  for (int i = 0; i < 1000; ++i)
    lost += recorder.word(std::string(90, 'x') + std::to_string(i)) == 0;
  EXPECT_GT(lost, 0u);
  const FlightRecord record = read_flight(recorder.path());
  EXPECT_EQ(record.names_lost, lost);
  EXPECT_EQ(record.words.size(), 1000 - lost);
  EXPECT_TRUE(record.damage.empty());
}

TEST(FlightRecorder, NeverTouchesARingThatIsThere) {
  const Scratch scratch;
  const EightSeries series;
  const FlightRecorder first(run_in(scratch.path()), series, flight::kLeastBytes);
  const FlightRecorder second(run_in(scratch.path()), series, flight::kLeastBytes);
  EXPECT_EQ(flight_files(scratch.path()),
            (std::vector<std::filesystem::path>{scratch.path() / "flight-000000.ring",
                                                scratch.path() / "flight-000001.ring"}));
}

TEST(FlightRecorder, AFileThatSomebodyCutsKillsNobody) {
  const Scratch scratch;
  const EightSeries series;
  FlightRecorder recorder(run_in(scratch.path()), series, 1 << 20);
  recorder.row(row_of(0, 1), 2);
  EXPECT_FALSE(recorder.found_cut());
  ASSERT_EQ(::truncate(recorder.path().c_str(), 100), 0);
  EXPECT_TRUE(recorder.found_cut());
  for (std::int64_t i = 0; i < 20000; ++i) recorder.row(row_of(1, i), i);  // SIGBUS without it
  EXPECT_FALSE(recorder.found_cut());
}

#if defined(TRAINMON_FAILPOINTS)
TEST(FlightRecorder, AFullDiskLeavesNoFile) {
  const Scratch scratch;
  set_failpoints("flight.allocate=errno:28");
  EXPECT_EQ(made_in(scratch.path()), "no_space");
  set_failpoints("");
  EXPECT_TRUE(flight_files(scratch.path()).empty());
  EXPECT_EQ(made_in(scratch.path()), "");
}
#endif

TEST(FlightRecorder, TakesTheRoomOfTheWholeFile) {
  const Scratch scratch;
  const EightSeries series;
  const FlightRecorder recorder(run_in(scratch.path()), series, 1 << 20);
  struct stat status {};
  ASSERT_EQ(::stat(recorder.path().c_str(), &status), 0);
  EXPECT_GE(status.st_blocks * 512, status.st_size);
}

TEST(FlightRecorder, ADirectoryThatIsNotThere) {
  const Scratch scratch;
  const std::filesystem::path file = scratch.path() / "file";
  std::FILE* const made = std::fopen(file.c_str(), "w");
  std::fclose(made);
  EXPECT_EQ(made_in(file / "below"), "gone");
}

}  // namespace
}  // namespace trainmon
