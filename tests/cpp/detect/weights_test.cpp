// The checks gap and update: weights move in the step alone, and as its formula says.
#include "detect/training.h"

namespace trainmon::detect {
namespace {

template <typename T>
void expect_updates_clean() {
  for (const Formula formula : {Formula::adam, Formula::sgd, Formula::momentum}) {
    Training<T> training(31, 2, kSizes, formula);
    training.has_checks = training.has_updates = true;
    training.decay = formula == Formula::adam ? 0.1F : 0.0F;
    for (int step = 0; step < 60; ++step) training.step();
    EXPECT_TRUE(training.findings().all().empty());
    const auto count = static_cast<std::int64_t>(60 * 2 * kSizes.size());
    EXPECT_EQ(training.findings().count_of(Check::update, Evidence::sketches), count);
  }
}

TEST(Engine, CorrectStepsOfAFormulaGiveNoFinding) {
  expect_updates_clean<float>();
  expect_updates_clean<Bf16>();
}

// A tensor of rank 1 that ends its seventh step otherwise than the formula says.
void expect_update(const std::function<void(float& w, float before)>& change) {
  Training<float> training(32, 3, kSizes, Formula::adam);
  training.has_checks = training.has_updates = true;
  training.decay = 0.1F;
  std::vector<float> before;
  training.after_update = [&] {
    std::vector<float>& w = training.ranks()[1].w[4];
    if (training.steps() == 7) {
      for (std::size_t i = 0; i < w.size(); ++i) change(w[i], before[i]);
    }
    before = w;
  };
  for (int step = 0; step < 12; ++step) training.step();
  const auto verdict = training.findings().verdict();
  ASSERT_TRUE(verdict);
  const Finding& one = training.findings().all()[*verdict];
  expect_place(one, Check::update, Stage::update, {1}, {4});
  EXPECT_EQ(one.evidence, Evidence::sketches);
  EXPECT_GT(one.value, one.bound);
}

TEST(Engine, AWeightThatMovesOtherwiseThanItsFormulaIsAnUpdate) {
  // Group 0 has the rate 0: a weight that does not move obeys it, and not its own.
  expect_update([](float& w, float before) { w = before; });
  expect_update([](float& w, float before) { w += w - before; });
  expect_update([](float& w, float) { w *= 1.0F - 0.01F * 0.1F; });
  expect_update([](float& w, float before) { w = before + (w - before) * 1.001F; });
}

TEST(Engine, AnyBitOfAWeightBetweenStepsIsAGap) {
  for (int bit = 0; bit < 32; ++bit) {
    Training<float> training(5, 3, kSizes, Formula::adam);
    const Finding one = found_after(
        training,
        [&] {
          float& w = training.ranks()[1].w[3][20];
          w = std::bit_cast<float>(std::bit_cast<std::uint32_t>(w) ^ (1U << bit));
        },
        nullptr);
    if (!std::isfinite(training.ranks()[1].w[3][20])) continue;
    expect_place(one, Check::gap, Stage::weights, {1}, {3});
  }
}

TEST(Engine, AnAnnouncedEditIsNoGap) {
  Training<float> training(5, 2, kSizes, Formula::adam);
  for (int step = 0; step < 12; ++step) {
    training.has_edit = step == 7;
    training.before_step = step == 7 ? [&] {
      for (auto& rank : training.ranks()) {
        for (auto& w : rank.w) {
          for (float& x : w) x *= 0.5F;
        }
      }
    } : std::function<void()>();
    training.step();
  }
  EXPECT_TRUE(training.findings().all().empty());
}

TEST(Engine, WeightsThatSgdDidNotMoveSoAreAnUpdate) {
  for (const Formula formula : {Formula::sgd, Formula::momentum}) {
    Training<float> training(10, 1, kSizes, formula);
    const Finding one = found_after(training, nullptr, [&] {
      // After the weights before the step were looked at.
      for (float& w : training.ranks()[0].w[4]) w += 0.5F;
    });
    expect_place(one, Check::update, Stage::update, {0}, {4});
  }
}

}  // namespace
}  // namespace trainmon::detect
