// kill -9 at any instant: event files parse, and what they hold is all that was sealed up to some
// moment, at most one flush interval before the kill. TRAINMON_KILLS sets the number of kills (40
// unless set).
#include <gtest/gtest.h>

#include <random>

#include "event_reader.h"
#include "kill_child.h"
#include "scratch.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

constexpr double kFlushSeconds = 0.05;

// How many rows the last point of each curve is made of. The child's series "forward.i" has the
// values 0, 1, 2, ..., "backward.i" i, i + 40, ...: the mean of all up to the largest is known.
std::uint64_t rows_in(const fs::path& directory) {
  auto curves = read_curves(directory);
  double rows = 0;
  for (const auto& [tag, points] : curves) {
    if (!tag.starts_with("max/")) continue;
    const std::string name = tag.substr(std::string("max/").size());
    const bool is_forward = name.find("forward.") != std::string::npos;
    const double first = is_forward ? 0.0 : std::stod(name.substr(name.rfind('.') + 1));
    const double largest = points.back().value;
    EXPECT_FLOAT_EQ(curves["mean/" + name].back().value, static_cast<float>((first + largest) / 2))
        << "a hole or a repeat in " << name;
    rows += (largest - first) / (is_forward ? 1.0 : 40.0) + 1;
  }
  return static_cast<std::uint64_t>(rows);
}

TEST(KillTensorboard, TheFilesAreAPrefixWithoutHoles) {
  const char* wanted = std::getenv("TRAINMON_KILLS");
  const int kills = wanted != nullptr ? std::atoi(wanted) : 40;
  const unsigned seed = std::random_device{}();
  std::printf("%d kills, seed %u\n", kills, seed);
  std::mt19937 random(seed);
  const Scratch scratch;
  int with_rows = 0, with_bound = 0;
  for (int i = 0; i < kills; ++i) {
    const fs::path run = scratch.path() / std::to_string(i);
    const auto life = std::chrono::microseconds(15000 + random() % 250000);
    // Every third child dies between two parts of one write.
    std::string torn;
    if (i % 3 == 2) {
      const int hit = 4 + static_cast<int>(random() % 5);
      torn = "file.write=short:" + std::to_string(1 + random() % 400) + "@" + std::to_string(hit) +
             ";file.write=kill@" + std::to_string(hit + 1);
    }
    const Kill killed = start_and_kill(run, life, torn.empty() ? nullptr : torn.c_str(),
                                       kFlushSeconds, "tensorboard");
    const fs::path directory = run / "tensorboard" / "rank_0";
    const std::uint64_t rows = fs::exists(directory) ? rows_in(directory) : 0;
    with_rows += rows > 0;
    // A child that a failpoint killed died before the parent's kill: no bound to check.
    // One flush interval, and one for a flush that is under way.
    std::uint64_t due = 0;
    const auto interval = static_cast<std::int64_t>(kFlushSeconds * 1e9);
    for (const KillReport& report : killed.reports) {
      if (torn.empty() && report.time_ns <= killed.time_ns - 2 * interval) due = report.sealed;
    }
    if (due > 0) ++with_bound;
    EXPECT_GE(rows, due) << "sealed before the last flush, yet lost";
    fs::remove_all(run);
  }
  std::printf("%d of %d kills with rows, %d with a bound\n", with_rows, kills, with_bound);
  EXPECT_GE(with_rows * 3, kills);
  EXPECT_GT(with_bound, kills / 5);
}

}  // namespace
}  // namespace trainmon
