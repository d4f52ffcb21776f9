// A training that does not end: memory, descriptors and files stay as they are once every name has
// come. TRAINMON_WHOLE=1: a million steps with 100,000 names in turn; else a fiftieth of both.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "campaign.h"
#include "monitor_fixture.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

using testing::observe;
using testing::Scratch;
using testing::series_of;

struct Usage {
  std::int64_t memory = 0;  // resident bytes
  std::int64_t descriptors = 0;
  std::int64_t files = 0;
  std::int64_t bytes = 0;  // of these files
};

Usage usage_of(const fs::path& run) {
  Usage now;
  std::int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  now.memory = resident * ::sysconf(_SC_PAGESIZE);
  now.descriptors = std::distance(fs::directory_iterator("/proc/self/fd"), {});
  for (const auto& entry : fs::recursive_directory_iterator(run)) {
    if (!entry.is_regular_file()) continue;
    ++now.files;
    now.bytes += static_cast<std::int64_t>(entry.file_size());
  }
  return now;
}

TEST(Endless, MemoryDescriptorsAndFilesStayAsTheyAre) {
  const Campaign campaign(
      "endless",
      "steps of one run with 100,000 names in turn, of which the log keeps 32 MB; "
      "memory, descriptors and files stay as they are",
      "steps");
  const std::int64_t names = is_whole_campaign() ? 100'000 : 2'000;
  const std::int64_t steps = 10 * names;
  const Scratch scratch;
  Config config = scratch.config();
  config.segment_mb = is_whole_campaign() ? 4.0 : 0.0625;
  config.retention_mb = 8 * config.segment_mb;
  config.overflow = Overflow::block;
  config.alert_limit = 1e9;
  config.stop_timeout_seconds = 60.0;
  Monitor monitor(config, Identity{});
  monitor.add_optimizer(0);
  std::vector<Usage> seen;  // from the second turn of the names on
  for (std::int64_t step = 0; step < steps; ++step) {
    const SeriesId id = series_of(monitor, "layers." + std::to_string(step % names));
    observe(monitor, id, {static_cast<float>(step)});
    monitor.begin_attempt(0);
    monitor.add_scalar("loss", 1.0);
    monitor.end_attempt(0, Fate::taken, 1.0);
    monitor.seal(Moment::after_step);
    if (step >= 2 * names && step % (names / 10) == 0) {
      ASSERT_TRUE(monitor.settle(60.0));
      seen.push_back(usage_of(scratch.path));
    }
  }
  const Health health = monitor.stop();
  EXPECT_EQ(health.rows_produced, steps);
  EXPECT_EQ(health.sinks.at(0).rows_written, steps);
  EXPECT_GT(health.sinks.at(0).rows_expired, steps / 4);
  EXPECT_EQ(monitor.series().size(), static_cast<std::size_t>(names));

  const Usage first = seen.front(), last = seen.back();
  std::printf("memory %.1f to %.1f MB, %lld to %lld descriptors, %lld to %lld files, %.1f MB\n",
              static_cast<double>(first.memory) / 1e6, static_cast<double>(last.memory) / 1e6,
              static_cast<long long>(first.descriptors), static_cast<long long>(last.descriptors),
              static_cast<long long>(first.files), static_cast<long long>(last.files),
              static_cast<double>(last.bytes) / 1e6);
  // A kibibyte for a thousand steps; and what the allocator keeps for itself.
  EXPECT_LT(last.memory - first.memory, steps + (4 << 20));
  EXPECT_EQ(last.descriptors, first.descriptors);
  for (const Usage& usage : seen) {
    EXPECT_LE(usage.files, 8 + 4) << "log files, and those that tell of the run";
    EXPECT_LE(usage.bytes, static_cast<std::int64_t>(config.retention_mb * 1048576.0) + 65536);
  }
  campaign.tell(static_cast<long>(steps), HasFailure());
}

}  // namespace
}  // namespace trainmon
