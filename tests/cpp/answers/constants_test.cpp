// Numbers that were the same in each row or in most, and then are others.
#include "answers/constants.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <random>

#include "answers/spread.h"

namespace trainmon {
namespace {

constexpr std::int64_t kMissingFrom = 200, kGiven = 400;

template <typename Search>
Search searched(const std::function<double(std::int64_t)>& number) {
  Search search;
  if constexpr (requires { search.begin(); }) search.begin();
  RowPlace place;
  for (place.step = 0; place.step < kGiven; ++place.step) search.add(place, number(place.step));
  return search;
}

TEST(NewZeros, AreThereFromTheFirstRowOn) {
  const auto found = searched<NewZeros>([](std::int64_t) { return 1.0 / 32; }).found();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->row.row.step, 0);
  EXPECT_EQ(found->row.value, 1.0 / 32);
  EXPECT_EQ(found->row.usual, 0.0);
}

TEST(NewZeros, AreNothingWhereTheyAreFewOrEnd) {
  EXPECT_FALSE(searched<NewZeros>([](std::int64_t) { return 1e-5; }).found());
  const auto ends = [](std::int64_t step) { return step == NewZeros::kRows - 1 ? 0.0 : 0.1; };
  EXPECT_FALSE(searched<NewZeros>(ends).found());
  NewZeros not_begun;
  for (int i = 0; i < 2 * NewZeros::kRows; ++i) not_begun.add({}, 0.1);
  EXPECT_FALSE(not_begun.found());
}

TEST(MissingLargest, IsFoundWhereMostRowsHadIt) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const auto number = [&](std::int64_t step) {
      return step < kMissingFrom && random() % 20 != 0 ? 8.0
                                                       : 3.0 + static_cast<double>(random() % 5);
    };
    const auto found = searched<MissingLargest>(number).found();
    ASSERT_TRUE(found) << seed;
    EXPECT_NEAR(static_cast<double>(found->row.row.step), kMissingFrom, 2.0);
    EXPECT_LE(found->row.row.step, kMissingFrom);
    EXPECT_EQ(found->row.usual, 8.0);
    EXPECT_LT(found->row.value, 8.0);
  }
}

TEST(MissingLargest, IsNothingWhereItIsRareOrAFlagOrComesLate) {
  std::mt19937 random(1);
  const auto words = [&](std::int64_t) { return static_cast<double>(random() % 1000); };
  const auto flags = [](std::int64_t step) { return step < kMissingFrom ? 1.0 : 0.0; };
  const auto early = [](std::int64_t step) { return step < MissingLargest::kRows / 2 ? 9.0 : 8.0; };
  const auto grows = [](std::int64_t step) { return static_cast<double>(step / 100); };
  for (const auto& one :
       {std::function<double(std::int64_t)>(words), std::function<double(std::int64_t)>(flags),
        std::function<double(std::int64_t)>(early), std::function<double(std::int64_t)>(grows)}) {
    EXPECT_FALSE(searched<MissingLargest>(one).found());
  }
}

// As the entropy of sixteen ids of a thousand, which are seldom alike.
TEST(Spread, OfAFewValuesIsNothing) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    const auto bits = [&](std::int64_t) { return random() % 9 == 0 ? 3.875 : 4.0; };
    EXPECT_FALSE(searched<SpreadSearch>(bits).found()) << seed;
  }
}

}  // namespace
}  // namespace trainmon
