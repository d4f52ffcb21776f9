// Ranks whose inputs are of another size than those of others, from rows written by hand.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "detect/engine.h"

namespace trainmon::detect {
namespace {

class Ranges {
 public:
  explicit Ranges(int ranks) : engine(tensors_, numbers(ranks)) {}

  // Norms near `norm`, with a mean near `mean`.
  void give(std::int32_t rank, double norm, double mean = 0.0, double count = 64.0,
            bool is_of_whole_batch = true) {
    Input one;
    one.rank = rank;
    one.seq = ++seq_;
    one.element = "input.0";
    one.is_of_whole_batch = is_of_whole_batch;
    one.fingerprint = seq_;
    one.sizes = Sizes{count, norm * near(), mean + near() - 1.0, 3.0 * near()};
    given_.push_back(std::move(one));
  }
  void end_step() {
    StepEvidence evidence(0, step_++);
    for (Input& one : given_) evidence.add(std::move(one));
    given_.clear();
    engine.take(std::move(evidence));
  }
  const std::vector<Finding>& found() const { return engine.findings().all(); }

 private:
  static std::vector<std::int32_t> numbers(int ranks) {
    std::vector<std::int32_t> all;
    for (int r = 0; r < ranks; ++r) all.push_back(r);
    return all;
  }
  double near() { return std::uniform_real_distribution<>(0.95, 1.05)(random_); }

  std::vector<Tensor> tensors_;
  std::mt19937_64 random_{5};
  std::vector<Input> given_;
  std::uint64_t seq_ = 0;
  std::int64_t step_ = 0;

 public:
  Engine engine;
};

void expect_one(const Ranges& ranges, std::int64_t step, std::vector<std::int32_t> ranks,
                const std::string& text) {
  ASSERT_EQ(ranges.found().size(), 1U);
  const Finding& one = ranges.found().front();
  EXPECT_EQ(check_name(one.check), "input");
  EXPECT_EQ(one.step, step);
  EXPECT_EQ(one.ranks, ranks);
  EXPECT_FALSE(one.certain);
  EXPECT_NE(one.text.find(text), std::string::npos) << one.text;
}

TEST(InputRanges, OfTwoRanksBothAreNamedOnce) {
  Ranges ranges(2);
  for (int step = 0; step < 200; ++step) {
    ranges.give(0, 50.0);
    ranges.give(1, 40.0);
    ranges.end_step();
    EXPECT_EQ(ranges.found().size(), step < 23 ? 0U : 1U);
  }
  expect_one(ranges, 0, {0, 1}, "the norm of input.0 is 4");
}

TEST(InputRanges, OfThreeRanksTheOneApartIsNamed) {
  Ranges ranges(3);
  for (int step = 0; step < 30; ++step) {
    ranges.give(0, 50.0);
    ranges.give(1, 50.0, 0.5);
    ranges.give(2, 50.0);
    ranges.end_step();
  }
  expect_one(ranges, 0, {1}, "the mean of input.0 is 0.4");
  EXPECT_NE(ranges.found().front().text.find(", on others -0.0"), std::string::npos);
}

TEST(InputRanges, ARankThatBeginsLaterIsNamedFromThere) {
  Ranges ranges(2);
  for (int step = 0; step < 400; ++step) {
    ranges.give(0, 50.0);
    ranges.give(1, step < 200 ? 50.0 : 30.0);
    ranges.end_step();
  }
  ASSERT_EQ(ranges.found().size(), 1U);
  // Steps before may lie apart by chance, on the same side or on the other.
  EXPECT_NEAR(static_cast<double>(ranges.found().front().step), 200.0, 8.0);
}

TEST(InputRanges, ThatAreAlikeAreNothing) {
  for (const int count : {2, 3, 16}) {
    Ranges ranges(count);
    for (int step = 0; step < 3000; ++step) {
      for (int r = 0; r < count; ++r) ranges.give(r, step < 1000 ? 50.0 : 20.0);
      ranges.end_step();
    }
    EXPECT_TRUE(ranges.found().empty()) << count;
  }
}

TEST(InputRanges, OfOtherShapesOrOfWholeBatchesAreNothing) {
  for (const bool is_of_whole_batch : {false, true}) {
    Ranges ranges(2);
    for (int step = 0; step < 200; ++step) {
      const double count = is_of_whole_batch ? 64.0 : 32.0;
      ranges.give(0, 50.0, 0.0, 32.0, is_of_whole_batch);
      ranges.give(1, 40.0, 0.0, count, is_of_whole_batch);
      ranges.end_step();
    }
    EXPECT_TRUE(ranges.found().empty());
  }
}

}  // namespace
}  // namespace trainmon::detect
