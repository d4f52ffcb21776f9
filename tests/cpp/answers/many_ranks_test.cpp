// Memory of readers whose work goes step by step, over ranks whose logs are one piece each.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <string>
#include <vector>

#include "answers/diagnose.h"
#include "written_run.h"

namespace trainmon {
namespace {

std::int64_t peak_megabytes() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss / 1024;
}

TEST(ManyRanks, DiagnoseKeepsAFewStepsOfThem) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr int kSteps = 10;  // sanitizers have memory of their own
  constexpr std::int64_t kMost = 4096;
#else
  constexpr int kSteps = 200;
  constexpr std::int64_t kMost = 200;
#endif
  constexpr int kRanks = 60, kTensors = 150, kBadStep = kSteps - 2;
  const Scratch scratch;
  for (int number = 0; number < kRanks; ++number) {
    WrittenRank rank(scratch.path(), number, 0);
    std::vector<SeriesId> series;
    for (int i = 0; i < kTensors; ++i) {
      series.push_back(rank.add("grad_unreduced", "layers." + std::to_string(i)));
    }
    for (int step = 0; step < kSteps; ++step) {
      for (const SeriesId one : series) {
        const bool is_bad = step == kBadStep && number == 7 && one == series[5];
        rank.row(one, step, is_bad ? WrittenRank::nan() : WrittenRank::one(step + 1.0));
      }
      rank.outcome(step, step);
      rank.write();
    }
  }
  const std::int64_t before = peak_megabytes();
  const Diagnosis found = diagnose(scratch.path());
  EXPECT_EQ(found.rows, std::int64_t{kRanks} * kTensors * kSteps);
  ASSERT_TRUE(found.verdict);
  EXPECT_EQ(found.findings[*found.verdict].step, kBadStep);
  EXPECT_LE(peak_megabytes() - before, kMost);
}

}  // namespace
}  // namespace trainmon
