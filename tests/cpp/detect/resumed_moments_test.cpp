// Starts that go on with the weights of an earlier one, and with moments that are its own or not.
#include <algorithm>

#include "detect/training.h"

namespace trainmon::detect {
namespace {

const std::vector<std::size_t> kAlike = {64, 300, 64, 300, 2};

// Ten steps, and six of another start, before which `load` does something to the state.
void train(Training<float>& training, const std::function<void()>& load) {
  for (int step = 0; step < 16; ++step) {
    training.restart = step < 10 ? 0 : 1;
    training.before_step = step == 10 ? load : nullptr;
    if (step > 10) training.has_edit = false;
    training.step();
  }
}

void swap_moments(Training<float>& training) {
  for (auto& rank : training.ranks()) {
    for (auto* const moment : {&rank.m, &rank.v}) std::swap((*moment)[1], (*moment)[3]);
  }
}

void expect_apart(const Training<float>& training, std::vector<std::uint32_t> tensors,
                  const std::string& source) {
  ASSERT_EQ(training.findings().all().size(), 1U);
  const Finding& one = training.findings().all().front();
  EXPECT_EQ(one.step, 10);
  EXPECT_EQ(one.restart, 1);
  EXPECT_EQ(stage_name(one.stage), "moments");
  EXPECT_EQ(one.ranks, (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(one.tensors, tensors);
  EXPECT_FALSE(one.certain);
  EXPECT_NE(one.text.find(source), std::string::npos) << one.text;
}

TEST(ResumedMoments, ThoseOfOtherTensorsAreNoticed) {
  for (const bool has_checks : {false, true}) {
    for (const bool has_edit : {false, true}) {  // as load_state_dict() announces
      Training<float> training(70, 2, kAlike, Formula::adam);
      training.has_checks = training.has_updates = has_checks;
      train(training, [&] {
        swap_moments(training);
        training.has_edit = has_edit;
      });
      expect_apart(training, {1, 3}, "t1 has those of t3");
    }
  }
}

// In the middle of a start, where something announces that it loads a state.
TEST(EditedMoments, FreshOnesAreNoticedBehindAnEdit) {
  for (const bool is_lost : {true, false}) {
    Training<float> training(70, 2, kAlike, Formula::adam);
    training.has_checks = true;
    for (int step = 0; step < 16; ++step) {
      training.has_edit = step == 9;
      training.before_step = [&] {
        for (auto& rank : training.ranks()) {
          for (auto* const moments : {&rank.m, &rank.v}) {
            for (auto& one : *moments) {
              if (is_lost && step == 9) std::ranges::fill(one, 0.0F);
            }
          }
        }
      };
      training.step();
    }
    ASSERT_EQ(training.findings().all().size(), is_lost ? 1U : 0U);
    if (!is_lost) continue;
    const Finding& one = training.findings().all().front();
    EXPECT_EQ(one.step, 9);
    EXPECT_FALSE(one.certain);
    EXPECT_EQ(one.ranks, (std::vector<std::int32_t>{0, 1}));
    EXPECT_NE(one.text.find("the moments begin at zero here"), std::string::npos) << one.text;
  }
}

TEST(ResumedMoments, FreshOnesAreNoticed) {
  Training<float> training(71, 2, kAlike, Formula::adam);
  training.has_checks = true;
  train(training, [&] {
    for (auto& rank : training.ranks()) {
      for (auto* const moments : {&rank.m, &rank.v}) {
        for (auto& one : *moments) std::ranges::fill(one, 0.0F);
      }
    }
  });
  expect_apart(training, {0, 1, 2, 3, 4}, "they begin at zero");
}

TEST(ResumedMoments, ThatGoOnAreNothing) {
  for (const bool has_checks : {false, true}) {
    for (const std::size_t seed : {72, 73, 74}) {
      Training<float> training(seed, 2, kSizes, Formula::adam);
      training.has_checks = has_checks;
      train(training, nullptr);
      EXPECT_TRUE(training.findings().all().empty());
      const auto all = static_cast<std::int64_t>(2 * kSizes.size());
      EXPECT_EQ(training.findings().count_of(Check::exp_avg), (9 + 1 + 5) * all);
    }
  }
}

TEST(ResumedMoments, OfOtherWeightsAreNothing) {
  Training<float> training(75, 2, kAlike, Formula::adam);
  train(training, [&] {
    swap_moments(training);
    for (auto& rank : training.ranks()) rank.w[0][5] *= 1.5F;
  });
  for (const Finding& one : training.findings().all()) {
    EXPECT_NE(stage_name(one.stage), "moments");
  }
}

TEST(ResumedMoments, OfAnotherOptimizerAreNothing) {
  Training<float> training(76, 2, kAlike, Formula::adam);
  train(training, [&] {
    swap_moments(training);
    for (const int rank : {0, 1}) {
      training.engine().declare(1, rank, 0, 0, "momentum_decay", 0.004);
    }
  });
  EXPECT_TRUE(training.findings().all().empty());
}

TEST(ResumedMoments, OfOtherShardsAreNothing) {
  Training<float> training(77, 4, kAlike, Formula::adam);
  training.has_checks = true;
  training.shards = 2;
  train(training, [&] {
    swap_moments(training);
    training.shards = 4;
  });
  for (const Finding& one : training.findings().all()) {
    EXPECT_NE(stage_name(one.stage), "moments");
  }
}

TEST(ResumedMoments, OfALoopThatMakesThemOtherwiseAreNothing) {
  Training<float> training(78, 2, kAlike, Formula::adam);
  training.has_checks = true;
  training.after_update = [&] {
    if (training.restart == 0) return;
    for (auto& rank : training.ranks()) {
      for (auto& moment : rank.m) {
        for (float& x : moment) x *= 0.5F;
      }
    }
  };
  train(training, nullptr);
  for (const Finding& one : training.findings().all()) {
    EXPECT_EQ(one.text.find("goes on with the weights"), std::string::npos);
  }
}

}  // namespace
}  // namespace trainmon::detect
