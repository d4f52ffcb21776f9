// The cells of a page: what they take up is bounded, however many ranks and steps there are.
#include "report/cell_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

namespace trainmon::page {
namespace {

constexpr std::int64_t kMost = 50'000, kSteps = 1'000;
constexpr int kTensors = 12;

CellTable table_of(int rank, std::int64_t steps) {
  CellTable table(kMost, 0, -1);
  for (std::int64_t step = 0; step < steps; ++step) {
    for (int i = 0; i < kTensors; ++i) {
      const auto value = static_cast<float>(1 + step + 1000 * i + 100'000 * rank);
      Cell cell;
      cell.value = cell.low = cell.high = value;
      table.add(table.line({"actv", 0, "w" + std::to_string(i), ""}, 0, rank), step, cell);
    }
  }
  return table;
}

std::int64_t room_of(const CellTable& table) {
  std::size_t room = 0;
  for (const Line& line : table.lines()) room += line.cells.capacity();
  return static_cast<std::int64_t>(room);
}

TEST(CellTable, RanksTakeNoMoreRoomThanTheirCells) {
  CellTable all(kMost, 0, -1);
  for (int rank = 0; rank < 16; ++rank) {
    all.take(table_of(rank, kSteps), 0, rank);
    EXPECT_LE(room_of(all), kMost) << rank;
  }
  EXPECT_EQ(all.lines().size(), 16U * kTensors);
  for (const Line& line : all.lines()) {
    const auto [least, most] = std::ranges::minmax(line.cells, {}, &Cell::value);
    const float first = line.cells.front().low;
    EXPECT_EQ(first,
              static_cast<float>(1 + 1000 * (&line - all.lines().data()) % (1000 * kTensors) +
                                 100'000 * line.rank));
    EXPECT_EQ(line.cells.back().high, first + kSteps - 1);
    EXPECT_EQ(most.value - least.value, line.cells.back().value - line.cells.front().value);
  }
}

TEST(CellTable, ManyStepsTakeLittleMoreRoomThanTheirCells) {
  const CellTable table = table_of(0, 40'000);
  EXPECT_LE(table.cells(), kMost);
  EXPECT_LE(room_of(table), kMost + kMost / 4 + 4 * kTensors);
}

TEST(CellTable, LinesThatAreKeptHaveTheCellsOfThoseThatGaveTheirsUp) {
  CellTable all(kMost, 0, -1);
  for (int rank : {0, 1}) {
    CellTable same = table_of(0, 20);
    CellTable of_rank(kMost, 0, -1);
    for (const Line& line : same.lines()) {
      const std::int64_t number = of_rank.line(same.tensors()[line.tensor], 0, rank);
      for (const Cell& cell : line.cells) of_rank.add(number, cell.bin, cell);
    }
    all.take(std::move(of_rank), 0, rank);
  }
  ASSERT_EQ(all.lines().size(), 2U * kTensors);
  ASSERT_EQ(all.lines()[kTensors].same_as, 0);
  for (std::size_t i = kTensors; i < all.lines().size(); ++i) {
    EXPECT_EQ(all.lines()[i].cells.capacity(), 0U) << i;
  }
  // The line that has none first; of another tensor both; of a third one the second alone.
  all.keep({kTensors, 0, 1, kTensors + 1, kTensors + 2});
  ASSERT_EQ(all.lines().size(), 5U);
  for (std::size_t i : {0U, 1U}) {
    EXPECT_EQ(all.cells_of(all.lines()[i]).cells.size(), 20U);
    EXPECT_EQ(all.cells_of(all.lines()[i]).cells.front().value, 1.0F);
  }
  EXPECT_EQ(all.lines()[1].same_as, 0);
  EXPECT_EQ(all.lines()[3].same_as, 2);
  EXPECT_EQ(all.cells_of(all.lines()[3]).cells.back().value, 1020.0F);
  EXPECT_EQ(all.lines()[4].same_as, -1);
  EXPECT_EQ(all.lines()[4].cells.back().value, 2020.0F);
}

}  // namespace
}  // namespace trainmon::page
