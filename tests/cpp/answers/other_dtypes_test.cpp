// What modules pass on begins to have another dtype.
#include "answers/other_dtypes.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "model/kinds.h"

namespace trainmon {
namespace {

constexpr std::int64_t kCastFrom = 40, kCastSteps = 80;

std::vector<LineShift> found_of(const std::function<bool(std::int64_t)>& is_cast,
                                std::string_view of = kind::kActv, bool is_restarted = false) {
  std::vector<Series> series(2);
  for (Series& one : series) one.kind = of;
  series[1].dtype = DType::bfloat16;
  OtherDtypes dtypes(series);
  LineValue value;
  for (std::int64_t step = 0; step < kCastSteps; ++step) {
    value.place.step = step;
    value.place.restart = is_restarted && step >= kCastFrom ? 1 : 0;
    value.series = is_cast(step) ? 1 : 0;
    dtypes.add(value);
  }
  return dtypes.found();
}

TEST(OtherDtypes, AreToldFromTheFirstRowOn) {
  for (const bool is_restarted : {false, true}) {
    const auto found =
        found_of([](auto step) { return step >= kCastFrom; }, kind::kInput, is_restarted);
    ASSERT_EQ(found.size(), 1U);
    const auto& [shift, series, measure, is_spread] = found.front();
    EXPECT_EQ(series, 1U);
    EXPECT_EQ(shift.row.row.step, kCastFrom);
    EXPECT_EQ(static_cast<DType>(shift.row.value), DType::bfloat16);
    EXPECT_EQ(static_cast<DType>(shift.row.usual), DType::float32);
    EXPECT_EQ(shift.begins, is_restarted);
  }
}

TEST(OtherDtypes, AreNothingWhereTheyAlternateOrAreFewOrOfOtherKinds) {
  EXPECT_TRUE(found_of([](auto step) { return step % 2 == 0; }).empty());
  EXPECT_TRUE(
      found_of([](auto step) { return step >= kCastFrom && step < kCastFrom + 7; }).empty());
  EXPECT_TRUE(found_of([](auto step) { return step >= 15; }).empty());
  EXPECT_TRUE(found_of([](auto) { return true; }).empty());
  EXPECT_TRUE(found_of([](auto step) { return step >= kCastFrom; }, kind::kGradReduced).empty());
}

}  // namespace
}  // namespace trainmon
