// Weights of the first step, measured here: those that are equal are told, once.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "detect/engine.h"
#include "stats/check.h"

namespace trainmon::detect {
namespace {

using Weights = std::vector<std::vector<float>>;

std::vector<float> drawn(std::uint64_t seed, std::size_t count) {
  std::mt19937_64 random(seed);
  std::vector<float> elements(count);
  for (float& x : elements) x = std::normal_distribution<float>()(random);
  return elements;
}

StepEvidence step_of(std::int64_t step, const std::vector<Weights>& ranks, bool has_checks) {
  StepEvidence evidence(0, step);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (std::size_t i = 0; i < ranks[rank].size(); ++i) {
      const std::int64_t size = std::ssize(ranks[rank][i]);
      const TensorView view{.data = ranks[rank][i].data(), .ndim = 1, .sizes = &size};
      trainmon::Check check;
      const RowState state = measure(view, 0, check);
      const RowCheck taken = row_check(check);
      Observation one = observe(state, 0, 1.0, has_checks ? &taken : nullptr);
      one.tensor = static_cast<std::uint32_t>(i);
      one.rank = static_cast<std::int32_t>(rank);
      evidence.add(one);
    }
  }
  return evidence;
}

std::vector<Finding> found(const std::vector<Weights>& ranks, bool has_checks) {
  std::vector<Tensor> tensors;
  for (std::size_t i = 0; i < ranks.front().size(); ++i) {
    tensors.push_back({"t" + std::to_string(i), 0, 0});
  }
  std::vector<std::int32_t> numbers;
  for (std::size_t i = 0; i < ranks.size(); ++i) numbers.push_back(static_cast<std::int32_t>(i));
  Engine engine(tensors, numbers);
  for (std::int64_t step = 0; step < 3; ++step) engine.take(step_of(step, ranks, has_checks));
  EXPECT_GT(engine.findings().count_of(Check::start), 0);
  return engine.findings().all();
}

TEST(Start, EqualWeightsAreOneNoticeOfAllRanks) {
  const Weights layers = {drawn(1, 40), drawn(2, 40), drawn(1, 40), drawn(3, 7), drawn(1, 40)};
  for (const bool has_checks : {false, true}) {
    const std::vector<Finding> all = found({layers, layers}, has_checks);
    ASSERT_EQ(all.size(), 1U);
    EXPECT_EQ(all[0].check, Check::start);
    EXPECT_EQ(all[0].stage, Stage::start);
    EXPECT_EQ(all[0].step, 0);
    EXPECT_FALSE(all[0].certain);
    EXPECT_EQ(all[0].ranks, (std::vector<std::int32_t>{0, 1}));
    EXPECT_EQ(all[0].tensors, (std::vector<std::uint32_t>{0, 2, 4}));
    EXPECT_EQ(all[0].evidence, has_checks ? Evidence::fingerprints : Evidence::statistics);
  }
}

TEST(Start, ConstantsAndTensorsOfOtherSizesAreNone) {
  const std::vector<float> zeros(40, 0.0F), ones(40, 1.0F), tenths(4001, 0.1F);
  EXPECT_TRUE(found({{zeros, zeros, ones, ones, tenths, tenths, {0.3F}, {0.3F}}}, true).empty());
  std::vector<float> longer = drawn(1, 40);
  longer.push_back(0.0F);
  EXPECT_TRUE(found({{drawn(1, 40), longer}}, true).empty());
}

TEST(Start, TheSameElementsInAnotherOrderDifferByTheirFingerprints) {
  std::vector<float> turned = drawn(1, 2);
  std::swap(turned[0], turned[1]);
  EXPECT_TRUE(found({{drawn(1, 2), turned}}, true).empty());
}

}  // namespace
}  // namespace trainmon::detect
