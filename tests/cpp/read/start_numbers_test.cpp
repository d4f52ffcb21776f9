// Which restarts of ranks are one start, from when they lived.
#include "read/start_numbers.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>
#include <vector>

namespace trainmon {
namespace {

using Numbers = std::map<std::pair<int, int>, int>;

TEST(StartNumbers, RanksThatAllRecordedKeepTheirs) {
  EXPECT_EQ(start_numbers({{0, 0, 100, 200}, {1, 0, 900, 950}}), Numbers());
  EXPECT_EQ(start_numbers({{0, 0, 100, 200}, {0, 1, 300, 400}, {1, 0, 101, 200}, {1, 1, 301, 400}}),
            Numbers());
  EXPECT_EQ(start_numbers(std::vector<RankStart>()), Numbers());
}

TEST(StartNumbers, ARankThatBeganInTheSecondStart) {
  const Numbers second = {{{1, 0}, 1}};
  EXPECT_EQ(start_numbers({{0, 0, 100, 130}, {0, 1, 300, 900}, {1, 0, 299, 900}}), second);
  EXPECT_EQ(start_numbers({{0, 0, 100, 130}, {0, 1, 300, 900}, {1, 0, 301, 301}}), second);
  // One after the other, as a script of one processor starts them.
  EXPECT_EQ(start_numbers({{0, 0, 100, 130}, {0, 1, 140, 150}, {1, 0, 152, 160}}), second);
  const Numbers first = {{{0, 0}, 1}};
  EXPECT_EQ(start_numbers({{0, 0, 300, 900}, {1, 0, 100, 130}, {1, 1, 300, 900}}), first);
  // And all later ones.
  const Numbers all = {{{1, 0}, 1}, {{1, 1}, 2}};
  EXPECT_EQ(start_numbers({{0, 0, 100, 130},
                           {0, 1, 300, 400},
                           {0, 2, 500, 600},
                           {1, 0, 300, 400},
                           {1, 1, 500, 600}}),
            all);
}

TEST(StartNumbers, ARankThatWasNotInTheSecondStart) {
  EXPECT_EQ(start_numbers({{0, 0, 100, 200}, {0, 1, 210, 900}, {1, 0, 101, 230}}), Numbers());
  EXPECT_EQ(start_numbers({{0, 0, 100, 200}, {0, 1, 300, 900}, {1, 0, 101, 200}, {2, 0, 99, 199}}),
            Numbers());
}

TEST(StartNumbers, NothingIsSaidWhereItCannotBeTold) {
  EXPECT_EQ(start_numbers({{0, 0, 100, 130}, {0, 1, 300, 900}, {1, 0, 0, 0}}), Numbers());
  // Long after all others.
  EXPECT_EQ(start_numbers({{0, 0, 100, 130}, {0, 1, 300, 400}, {1, 0, 900, 950}}), Numbers());
  // Both of a rank beside one of another.
  EXPECT_EQ(
      start_numbers(
          {{0, 0, 10, 20}, {0, 1, 30, 40}, {0, 3, 100, 900}, {1, 1, 101, 200}, {1, 2, 300, 400}}),
      Numbers());
}

}  // namespace
}  // namespace trainmon
