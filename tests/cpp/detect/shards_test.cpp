// The check reduce where ranks hold shards of reduced gradients: they add up to the whole.
#include "detect/training.h"

namespace trainmon::detect {
namespace {

// `ranks` that hold a shard each.
Training<float> sharded(std::uint64_t seed, int ranks, bool has_checks = true) {
  Training<float> training(seed, ranks, kSizes, Formula::adam);
  training.shards = ranks;
  training.has_checks = has_checks;
  return training;
}

void lose(Training<float>& training, std::size_t rank, std::size_t tensor) {
  const float count = static_cast<float>(training.ranks().size());
  for (std::size_t at = 0; at < kSizes[tensor]; ++at) {
    const float given = training.ranks()[rank].local[tensor][at];
    for (auto& one : training.ranks()) one.reduced[tensor][at] -= given / count;
  }
}

// But for gradients that have a round number by chance.
template <typename T>
void expect_checked(const Training<T>& training, std::int64_t steps) {
  const Evidence by = training.has_checks ? Evidence::sketches : Evidence::statistics;
  const std::int64_t all = steps * std::ssize(kSizes);
  EXPECT_GT(training.findings().count_of(Check::reduce, by), all * 9 / 10);
  EXPECT_LE(training.findings().count_of(Check::reduce), all);
}

template <typename T>
void expect_sound(Training<T>& training, int steps) {
  for (int i = 0; i < steps; ++i) training.step();
  EXPECT_TRUE(training.findings().all().empty()) << training.findings().all().front().text;
  expect_checked(training, steps);
}

TEST(Shards, ThatAddUpToTheMeanAreSound) {
  for (const int ranks : {2, 3, 5}) {
    for (const bool has_checks : {true, false}) {
      for (const float clip : {1e30F, 0.5F}) {
        Training<float> training = sharded(51, ranks, has_checks);
        training.clip = clip;
        expect_sound(training, 60);
        Training<Bf16> low(52, ranks, kSizes, Formula::adam);
        low.shards = ranks;
        low.has_checks = has_checks;
        low.clip = clip;
        expect_sound(low, 60);
      }
    }
  }
}

TEST(Shards, WithoutAContributionNameItsRank) {
  for (const bool has_checks : {true, false}) {
    for (const float clip : {1e30F, 0.5F}) {
      for (const std::size_t tensor : {0U, 1U, 4U}) {  // the first has empty shards
        Training<float> training = sharded(53, 3, has_checks);
        training.clip = clip;
        const Finding one = found_after(training, nullptr, [&] { lose(training, 1, tensor); });
        expect_place(one, Check::reduce, Stage::grad_reduced, {1},
                     {static_cast<std::uint32_t>(tensor)});
        EXPECT_EQ(one.text, "the reduced gradient lacks the contribution of rank 1");
      }
    }
  }
}

// As a reduce-scatter gives them, of a module that is all of the model.
TEST(Shards, OfAllTensorsWithoutAContributionNameItsRank) {
  Training<float> training = sharded(54, 2);
  const Finding one = found_after(training, nullptr, [&] {
    for (std::size_t i = 0; i < kSizes.size(); ++i) lose(training, 0, i);
  });
  expect_place(one, Check::reduce, Stage::grad_reduced, {0}, {0, 1, 2, 3, 4, 5, 6, 7});
}

TEST(Shards, OneOfWhichIsWrongNamesAllThatHoldOne) {
  for (const auto& [tensor, holders] : std::vector<std::pair<std::uint32_t, std::vector<int>>>{
           {4, {0, 1, 2}}, {6, {0, 1}}, {0, {0}}}) {
    Training<float> training = sharded(55, 3);
    const Finding one = found_after(training, nullptr, [&, at = tensor] {
      float& x = training.ranks()[0].reduced[at][0];
      x = std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) ^ (1U << 31));
    });
    expect_place(one, Check::reduce, Stage::grad_reduced, holders, {tensor});
    EXPECT_GT(one.value, one.bound);
  }
}

TEST(Shards, ThatAreDoubledInAllTensorsAreNoMean) {
  Training<float> training = sharded(56, 2);
  training.after_backward = [&] {
    if (training.steps() < 5) return;
    multiply(training, 2.0F);
  };
  for (int i = 0; i < 20; ++i) training.step();
  ASSERT_TRUE(training.findings().verdict());
  const Finding& one = training.findings().all()[*training.findings().verdict()];
  EXPECT_EQ(check_name(one.check), "reduce");
  EXPECT_EQ(one.step, 5);
  EXPECT_EQ(one.ranks, (std::vector<std::int32_t>{0, 1}));
}

TEST(Shards, HalvedInEachStepAreNoClipping) {
  Training<float> training(57, 2, {20, 90, 300, 7}, Formula::adam);
  training.shards = 2;
  training.has_checks = true;
  training.after_backward = [&] {
    if (training.steps() < 5) return;
    multiply(training, 0.5F);
  };
  for (int i = 0; i < 20; ++i) training.step();
  ASSERT_EQ(training.findings().all().size(), 1U);
  const Finding& one = training.findings().all().front();
  EXPECT_EQ(one.step, 5);
  EXPECT_EQ(one.ranks, (std::vector<std::int32_t>{0, 1}));
  EXPECT_TRUE(one.certain);
  EXPECT_NE(one.text.find("times the mean in each step"), std::string::npos) << one.text;
}

// As for the tokens of a batch: noticed, and taken back where it was called certain.
TEST(Shards, MultipliedByWhatVariesAreNoVerdict) {
  for (const std::int64_t begin : {0, 12}) {
    Training<float> training = sharded(63, 3);
    training.after_backward = [&] {
      const auto step = training.steps();
      if (step < begin) return;
      const float factor = 1.2F + 0.7F * std::sin(1.7F * static_cast<float>(step) + 0.5F);
      multiply(training, factor);
    };
    for (int i = 0; i < 40; ++i) training.step();
    EXPECT_FALSE(training.findings().verdict());
    EXPECT_FALSE(training.findings().all().empty());
    EXPECT_LE(training.findings().all().size(), 2U);
  }
}

TEST(Shards, OfWhichOneIsMissingAreNotChecked) {
  Training<float> training(58, 3, {700, 700}, Formula::adam);
  training.shards = 3;
  for (int i = 0; i < 5; ++i) training.step();
  const std::int64_t before = training.findings().count_of(Check::reduce);
  EXPECT_EQ(before, 10);
  for (const std::size_t tensor : {0U, 1U}) {
    training.lost = std::pair(tensor, std::size_t{2});
    training.step();
  }
  EXPECT_EQ(training.findings().count_of(Check::reduce), before + 2);
  for (const Finding& one : training.findings().all()) {
    EXPECT_NE(check_name(one.check), "reduce");
  }
}

// Replicas of shards, of which two halves of one kind and none of the other are half of a record.
TEST(Shards, ThatOtherRanksHoldTooAreNotChecked) {
  Training<float> training(59, 4, {4, 700}, Formula::adam);
  training.shards = 2;
  training.has_checks = true;
  for (int i = 0; i < 9; ++i) training.step();
  EXPECT_EQ(training.findings().count_of(Check::reduce), 0);
  EXPECT_TRUE(training.findings().all().empty());
  StepEvidence evidence(0, 0);
  std::vector<Tensor> tensors = {{"a", 0, 0}};
  Engine engine(tensors, {0, 1, 2, 3});
  for (const std::int32_t rank : {0, 1, 2, 3}) {
    Observation one;
    one.rank = rank;
    one.count = 8.0;
    one.sum = one.sum_sq = one.absmax = 0.77;
    one.quantity = Quantity::grad_unreduced;
    evidence.add(one);
    one.quantity = Quantity::grad_reduced;
    one.count = 4.0;
    one.part = static_cast<std::uint64_t>(rank % 2);
    one.sum = 0.1 * rank;
    if (rank % 2 == 0) evidence.add(one);
  }
  engine.take(std::move(evidence));
  EXPECT_EQ(engine.findings().count_of(Check::reduce), 0);
}

TEST(Shards, OfMicroStepsAddUpEitherWay) {
  for (const bool reduces_each : {true, false}) {
    for (const bool has_checks : {true, false}) {
      for (const float clip : {1e30F, 0.5F}) {
        Training<float> training = sharded(60, 2, has_checks);
        training.micro_steps = 4;
        training.reduces_each = reduces_each;
        training.clip = clip;
        expect_sound(training, 40);
      }
    }
  }
}

TEST(Shards, OfMicroStepsWithoutAContributionNameItsRank) {
  for (const bool reduces_each : {true, false}) {
    for (const bool is_all : {true, false}) {
      Training<float> training = sharded(61, 3);
      training.micro_steps = 4;
      training.reduces_each = reduces_each;
      const Finding one = found_after(training, nullptr, [&] {
        for (std::size_t i = 0; i < kSizes.size(); ++i) {
          if (is_all || i == 3) lose(training, 2, i);
        }
      });
      const std::vector<std::uint32_t> all = {0, 1, 2, 3, 4, 5, 6, 7}, single = {3};
      expect_place(one, Check::reduce, Stage::grad_reduced, {2}, is_all ? all : single);
    }
  }
}

// Every second micro step, as rows do not say.
TEST(Shards, OfMicroStepsInAnotherWayAreNotChecked) {
  Training<float> training = sharded(62, 2);
  for (int i = 0; i < 30; ++i) {
    training.micro_steps = i < 10 ? 1 : 3;
    training.reduces_each = true;
    training.after_backward = [&] {
      for (std::size_t k = 0; training.steps() >= 10 && k < kSizes.size(); ++k) {
        lose(training, 0, k);
        lose(training, 1, k);
      }
    };
    training.step();
  }
  expect_checked(training, 10);
  EXPECT_TRUE(training.findings().all().empty());
}

}  // namespace
}  // namespace trainmon::detect
