// Ranks whose gradients are of another size, from rows written by hand.
#include "detect/gradient_ranges.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "detect/engine.h"

namespace trainmon::detect {
namespace {

// Three ranks, an optimizer over two tensors.
class RanksApart : public ::testing::Test {
 protected:
  using Size = std::function<double(std::int32_t rank, std::int64_t step)>;

  // `size` is the norm of both gradients together.
  // Rank r has the tensors from r * `apart` on.
  void steps(std::int64_t count, const Size& size, bool is_independent = false,
             std::uint32_t apart = 0) {
    for (const std::int64_t end = step_ + count; step_ < end; ++step_) {
      StepEvidence evidence(0, step_);
      for (std::int32_t rank = 0; rank < 3; ++rank) {
        for (std::uint32_t tensor = 0; tensor < 2; ++tensor) {
          Observation one;
          one.tensor = tensor + static_cast<std::uint32_t>(rank) * apart;
          one.rank = rank;
          one.quantity = Quantity::grad_unreduced;
          one.is_independent = is_independent;
          one.seq = one.digest = ++seq_;
          one.count = 10.0;
          one.absmax = 1.0;
          one.sum_sq = 0.5 * std::pow(size(rank, step_), 2);
          evidence.add(one);
        }
      }
      engine.take(std::move(evidence));
    }
  }
  std::vector<Finding> found() const {
    std::vector<Finding> apart;
    for (const Finding& one : engine.findings().all()) {
      if (one.stage == Stage::grad_unreduced) apart.push_back(one);
    }
    return apart;
  }

  // Between 4 and 5.
  static double usual(std::int64_t step) { return 4.0 + 0.25 * static_cast<double>(step % 5); }

  const std::vector<Tensor> tensors = {{"a", 0, 0}, {"b", 0, 0}, {"c", 0, 0},
                                       {"d", 0, 0}, {"e", 0, 0}, {"f", 0, 0}};
  Engine engine{tensors, {0, 1, 2}};

 private:
  std::int64_t step_ = 0;
  std::uint64_t seq_ = 0;
};

TEST_F(RanksApart, OneWithLargerGradientsInAllFirstStepsIsNoticedOnce) {
  const Size size = [](std::int32_t rank, std::int64_t step) {
    return usual(step) * (rank == 1 ? 1.6 : 1.0);
  };
  steps(23, size);
  EXPECT_TRUE(found().empty());
  steps(30, size);
  ASSERT_EQ(found().size(), 1U);
  EXPECT_EQ(found()[0].step, 0);
  EXPECT_EQ(found()[0].ranks, (std::vector<std::int32_t>{1}));
  EXPECT_FALSE(found()[0].certain);
  EXPECT_NE(found()[0].text.find("6.4 to 8 on rank 1, on others 4 to 5 in these 24 steps"),
            std::string::npos)
      << found()[0].text;
}

TEST_F(RanksApart, ThoseThatOverlapOrAreNearAreNothing) {
  const auto times = [](double factor) {
    return [factor](std::int32_t rank, std::int64_t step) {
      return usual(step) * (rank == 1 ? factor : 1.0);
    };
  };
  steps(60, times(1.5));  // 6 to 7.5 is less than 1.25 times 5 away
  EXPECT_TRUE(found().empty());
  steps(60, times(3.0));  // these are no first steps
  EXPECT_TRUE(found().empty());
}

TEST_F(RanksApart, RanksWithTensorsOfTheirOwnAreNothing) {
  steps(
      60, [](std::int32_t rank, std::int64_t step) { return usual(step) * (1 + rank); }, true);
  EXPECT_TRUE(found().empty());
}

TEST_F(RanksApart, StagesOfAPipelineAreNothing) {
  steps(
      60, [](std::int32_t rank, std::int64_t step) { return usual(step) * (1 + rank); }, false, 2);
  EXPECT_TRUE(found().empty());
}

}  // namespace
}  // namespace trainmon::detect
