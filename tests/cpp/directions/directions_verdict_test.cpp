// The manual's rule is exact at its borders: 0.97 and 0.03 are no doubles, counts are.
#include "directions/directions_verdict.h"

#include <gtest/gtest.h>

namespace trainmon {
namespace {

using Row = std::vector<Agreement>;

// The first bad step of one parameter, -1 for none.
std::int64_t first_bad(const Row& row) {
  std::vector<std::int64_t> steps(row.size());
  for (std::size_t i = 0; i < steps.size(); ++i) steps[i] = static_cast<std::int64_t>(i);
  const std::vector<Suspicion> found = suspicions(steps, {row});
  return found.empty() ? -1 : found.front().step;
}

TEST(DirectionsVerdict, FirstStepBelow97Of100) {
  EXPECT_EQ(first_bad({{97, 100}}), -1);
  EXPECT_EQ(first_bad({{969, 1000}}), 0);
  EXPECT_EQ(first_bad({{970, 1000}}), -1);
  // One element of a number so large that doubles of both quotients are the same.
  constexpr std::int64_t kLarge = std::int64_t{100} << 42;
  EXPECT_EQ(first_bad({{kLarge / 100 * 97, kLarge}}), -1);
  EXPECT_EQ(first_bad({{kLarge / 100 * 97 - 1, kLarge}}), 0);
}

TEST(DirectionsVerdict, DropOfMoreThan3Of100) {
  EXPECT_EQ(first_bad({{100, 100}, {97, 100}, {94, 100}, {91, 100}}), -1);
  EXPECT_EQ(first_bad({{1000, 1000}, {970, 1000}, {939, 1000}}), 2);
  // In doubles 1 - 0.97 is more than 0.03.
  EXPECT_GT(1.0 - 0.97, 0.03);
  EXPECT_EQ(first_bad({{100, 100}, {97, 100}}), -1);
  // Sizes that changed in between: 0.99 to 0.96, and to a little less.
  EXPECT_EQ(first_bad({{99, 100}, {192, 200}}), -1);
  EXPECT_EQ(first_bad({{99, 100}, {1919, 2000}}), 1);
  constexpr std::int64_t kLarge = std::int64_t{100} << 42;
  EXPECT_EQ(first_bad({{kLarge, kLarge}, {kLarge / 100 * 97, kLarge}}), -1);
  EXPECT_EQ(first_bad({{kLarge, kLarge}, {kLarge / 100 * 97 - 1, kLarge}}), 1);
}

TEST(DirectionsVerdict, RisesAreFine) {
  EXPECT_EQ(first_bad({{97, 100}, {100, 100}, {98, 100}, {100, 100}}), -1);
}

TEST(DirectionsVerdict, WhatWasNotComparedIsPassedOver) {
  const Agreement none;
  EXPECT_EQ(first_bad({none, none}), -1);
  EXPECT_EQ(first_bad({none, {90, 100}}), 1);
  EXPECT_EQ(first_bad({{100, 100}, none, {90, 100}}), 2);
  EXPECT_EQ(first_bad({{0, 0}, {100, 100}, {0, 0}, {98, 100}}), -1);
}

TEST(DirectionsVerdict, EachParametersFirstByStepThenBackwards) {
  const Row good{{100, 100}, {100, 100}, {100, 100}};
  const Row bad_at_1{{100, 100}, {90, 100}, {10, 100}};
  const Row bad_at_2{{100, 100}, {99, 100}, {90, 100}};
  const std::vector<Suspicion> found =
      suspicions({5, 7, 9}, {bad_at_2, bad_at_1, good, bad_at_1, bad_at_2});
  ASSERT_EQ(found.size(), 4u);
  const std::vector<std::pair<std::size_t, std::int64_t>> expected = {
      {3, 7}, {1, 7}, {4, 9}, {0, 9}};
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].parameter, expected[i].first);
    EXPECT_EQ(found[i].step, expected[i].second);
    EXPECT_EQ(found[i].rule, DirectionRule::drop);
  }
  EXPECT_EQ(found[0].before.equal, 100);
  EXPECT_EQ(found[0].here.equal, 90);
}

}  // namespace
}  // namespace trainmon
