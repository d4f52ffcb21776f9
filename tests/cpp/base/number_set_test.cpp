// Ranges of numbers against std::set, number by number.
#include "base/number_set.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <vector>

namespace trainmon {
namespace {

std::vector<std::int64_t> numbers_of(const NumberSet& set) {
  std::vector<std::int64_t> numbers;
  set.for_each([&](std::int64_t number) { numbers.push_back(number); });
  return numbers;
}

TEST(NumberSet, HoldsWhatASetHolds) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    NumberSet set;
    std::set<std::int64_t> expected;
    for (int i = 0; i < 40; ++i) {
      const auto first = static_cast<std::int64_t>(random() % 64);
      const auto last = first + static_cast<std::int64_t>(random() % 4);
      set.insert(first, last);
      for (std::int64_t number = first; number <= last; ++number) expected.insert(number);
      ASSERT_EQ(numbers_of(set), std::vector(expected.begin(), expected.end()));
      ASSERT_EQ(set.size(), expected.size());
      ASSERT_EQ(set.last(), *expected.rbegin());
    }
    NumberSet by_number;  // however the numbers came
    for (const std::int64_t number : expected) by_number.insert(number);
    EXPECT_EQ(by_number, set);
    for (std::int64_t number = -1; number < 70; ++number) {
      EXPECT_EQ(set.contains(number), expected.contains(number));
    }
  }
}

TEST(NumberSet, TakesTheLeastAndTheGreatestNumber) {
  constexpr auto kLeast = std::numeric_limits<std::int64_t>::min();
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  NumberSet set;
  EXPECT_TRUE(set.empty());
  for (const std::int64_t number : {kMost, kLeast, kLeast + 1, kMost - 1, kMost}) {
    set.insert(number);
  }
  EXPECT_EQ(numbers_of(set), (std::vector<std::int64_t>{kLeast, kLeast + 1, kMost - 1, kMost}));
  EXPECT_FALSE(set.contains(0));
}

}  // namespace
}  // namespace trainmon
