// What ranks declared shortly before a step.
#include "answers/setting_changes.h"

#include <gtest/gtest.h>

namespace trainmon {
namespace {

ReadDeclared rate(std::int32_t rank, std::int64_t step, double value) {
  ReadDeclared one;
  one.rank = rank;
  one.step = step;
  one.value.name = "lr";
  one.value.type = DeclaredValue::Type::number;
  one.value.number = value;
  return one;
}

using Texts = std::vector<std::string>;

TEST(SettingChanges, OfSomeRanksSayWhoseTheyAre) {
  const std::vector<ReadDeclared> declared = {rate(0, 0, 0.5), rate(1, 0, 0.5), rate(2, 0, 0.5),
                                              rate(1, 7, 0.25), rate(2, 7, 0.25)};
  const std::string change = "lr of group 0 changed from 0.5 to 0.25 at step 7";
  EXPECT_EQ(setting_changes(declared, 0, {0, 1, 2}, 8), Texts{"ranks 1-2: " + change});
  EXPECT_EQ(setting_changes(declared, 0, {0, 1}, 8), Texts{"rank 1: " + change});
  EXPECT_EQ(setting_changes(declared, 0, {1, 2}, 8), Texts{change});
  EXPECT_EQ(setting_changes(declared, 0, {0}, 8), Texts{});
  EXPECT_EQ(setting_changes(declared, 0, {1, 2}, 40), Texts{});                      // long before
  EXPECT_EQ(setting_changes(declared, 0, std::vector<std::int32_t>{}, 8), Texts{});  // of rank 0
}

}  // namespace
}  // namespace trainmon
