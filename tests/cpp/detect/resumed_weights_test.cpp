// Starts that go on behind a step of an earlier one, with its weights and learning rate or others.
#include <algorithm>

#include "detect/training.h"

namespace trainmon::detect {
namespace {

using WeightsOfRanks = std::vector<std::vector<std::vector<float>>>;  // by rank

const std::vector<std::size_t> kSizesAlike = {64, 300, 64, 300, 2};

// Ten steps, and six of another start, before which `load` does something to the state.
class WeightsOfARestart : public ::testing::Test {
 protected:
  void train(Training<float>& training, const std::function<void()>& load) {
    training.has_checks = has_checks;
    for (int step = 0; step < 16; ++step) {
      training.restart = step < 10 ? 0 : 1;
      training.before_step = nullptr;
      if (step == 10) training.before_step = load;
      training.step();
      saved_.emplace_back();
      for (const auto& rank : training.ranks()) saved_.back().push_back(rank.w);
    }
  }
  void load(Training<float>& training, std::size_t step, std::size_t rank) {
    training.ranks()[rank].w = saved_[step][rank];
  }

  bool has_checks = true;
  std::vector<WeightsOfRanks> saved_;  // by step: what it left
};

std::vector<Finding> said(const Training<float>& training) {
  std::vector<Finding> said;
  for (const Finding& one : training.findings().all()) {
    if (one.text.starts_with("this start goes on behind")) said.push_back(one);
  }
  return said;
}

void expect_one(const Training<float>& training, std::vector<std::int32_t> ranks,
                std::vector<std::uint32_t> tensors, const std::string& text) {
  const std::vector<Finding> all = said(training);
  ASSERT_EQ(all.size(), 1U);
  const Finding& one = all.front();
  EXPECT_EQ(one.check, Check::gap);
  EXPECT_EQ(one.stage, Stage::start);
  EXPECT_EQ(one.step, 10);
  EXPECT_EQ(one.restart, 1);
  EXPECT_EQ(one.ranks, ranks);
  EXPECT_EQ(one.tensors, tensors);
  EXPECT_FALSE(one.certain);
  EXPECT_NE(one.text.find(text), std::string::npos) << one.text;
}

TEST_F(WeightsOfARestart, ThatGoOnAreNothing) {
  Training<float> training(80, 2, kSizesAlike, Formula::adam);
  train(training, nullptr);
  EXPECT_TRUE(training.findings().all().empty());
}

TEST_F(WeightsOfARestart, AreComparedByWhatIsRecorded) {
  for (const bool checks : {false, true}) {
    has_checks = checks;
    Training<float> training(80, 2, kSizesAlike, Formula::adam);
    train(training, nullptr);
    const auto evidence = checks ? Evidence::fingerprints : Evidence::statistics;
    const auto all = static_cast<std::int64_t>(15 * 2 * kSizesAlike.size());
    EXPECT_EQ(training.findings().count_of(Check::gap), all);
    EXPECT_EQ(training.findings().count_of(Check::gap, evidence), all);
  }
}

TEST_F(WeightsOfARestart, ThoseOfAnOlderStepAreNamed) {
  Training<float> training(81, 2, kSizesAlike, Formula::adam);
  train(training, [&] {
    for (const std::size_t rank : {0, 1}) load(training, 6, rank);
  });
  expect_one(training, {0, 1}, {0, 1, 2, 3, 4},
             "behind step 9, but its weights are not those that restart 0 left there; they are "
             "those that step 6 left");
}

TEST_F(WeightsOfARestart, ThoseOfTheBeginningAreNamed) {
  Training<float> training(82, 1, kSizesAlike, Formula::adam);
  const auto first = training.ranks().front().w;
  train(training, [&] { training.ranks().front().w = first; });
  expect_one(training, {0}, {0, 1, 2, 3, 4}, "those with which step 0 began");
}

TEST_F(WeightsOfARestart, AnOlderShardOfOneRankIsNamed) {
  Training<float> training(83, 4, kSizesAlike, Formula::adam);
  training.shards = 2;
  train(training, [&] {
    for (const std::size_t rank : {1, 3}) load(training, 3, rank);
  });
  const std::vector<Finding> all = said(training);
  ASSERT_FALSE(all.empty());
  for (const Finding& one : all) {
    EXPECT_NE(one.text.find("those that step 3 left"), std::string::npos) << one.text;
  }
}

TEST_F(WeightsOfARestart, ShardsOfAnotherRankAreNamed) {
  Training<float> training(84, 2, {64, 300}, Formula::adam);
  training.shards = 2;
  train(training, [&] {
    auto& ranks = training.ranks();
    for (std::size_t i = 0; i < 2; ++i) {  // the halves of each tensor
      for (auto& rank : ranks) {
        auto& w = rank.w[i];
        std::swap_ranges(w.begin(), w.begin() + static_cast<std::ptrdiff_t>(w.size() / 2),
                         w.begin() + static_cast<std::ptrdiff_t>(w.size() / 2));
      }
    }
  });
  const std::vector<Finding> all = said(training);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_NE(all[0].text.find("t0 has those that rank 1 left"), std::string::npos) << all[0].text;
  EXPECT_NE(all[1].text.find("t0 has those that rank 0 left"), std::string::npos) << all[1].text;
}

TEST_F(WeightsOfARestart, ThoseOfAnotherTensorAreNamed) {
  Training<float> training(85, 2, kSizesAlike, Formula::adam);
  train(training, [&] {
    for (auto& rank : training.ranks()) std::swap(rank.w[1], rank.w[3]);
  });
  expect_one(training, {0, 1}, {1, 3},
             "2 of its 5 weights are not those that restart 0 left there; "
             "t1 has those of t3");
}

TEST_F(WeightsOfARestart, RoundedOnesHaveASize) {
  Training<float> training(86, 1, kSizesAlike, Formula::adam);
  train(training, [&] {
    for (auto& w : training.ranks().front().w) {
      for (float& x : w) x = to_float(rounded<Bf16>(x));
    }
  });
  expect_one(training, {0}, {0, 1, 2, 3, 4}, "they are off by 0.");
}

TEST_F(WeightsOfARestart, ThatChangeBetweenStepsByHabitAreNothing) {
  Training<float> training(87, 2, kSizesAlike, Formula::adam);
  training.has_checks = true;
  for (int step = 0; step < 30; ++step) {
    training.restart = step < 20 ? 0 : 1;
    training.before_step = nullptr;
    if (step % 5 == 0) {  // as Lookahead
      training.before_step = [&] {
        for (auto& rank : training.ranks()) {
          for (auto& w : rank.w) {
            for (float& x : w) x *= 0.99F;
          }
        }
      };
    }
    training.step();
  }
  EXPECT_TRUE(said(training).empty());
}

TEST_F(WeightsOfARestart, OfOtherShardsAreNothing) {
  Training<float> training(88, 4, kSizesAlike, Formula::adam);
  training.shards = 2;
  train(training, [&] { training.shards = 4; });
  EXPECT_TRUE(said(training).empty());
}

TEST_F(WeightsOfARestart, BehindNoStepAreNothing) {
  Training<float> training(89, 1, kSizesAlike, Formula::adam);
  training.has_checks = true;
  for (int step = 0; step < 8; ++step) training.step();
  training.restart = 1;
  training.before_step = [&] { training.ranks().front().w[0][3] += 1.0F; };
  training.engine().forget_step();  // the last steps were not recorded
  for (int step = 0; step < 4; ++step) {
    training.step();
    training.before_step = nullptr;
  }
  EXPECT_TRUE(said(training).empty());
}

// A rate of each step, and the step with which another start begins.
class RatesOfARestart : public ::testing::Test {
 protected:
  template <typename Rate>
  void train(std::int64_t resumed, const Rate& rate) {
    for (std::int64_t step = 0; step < 40; ++step) {
      const std::int32_t restart = step < resumed ? 0 : 1;
      StepEvidence evidence(restart, step);
      for (const std::int32_t rank : {0, 1}) {
        engine_.declare(restart, rank, 0, 0, "lr", rate(step));
        Observation one;
        one.rank = rank;
        evidence.add(one);
      }
      engine_.take(std::move(evidence));
    }
  }
  const std::vector<Tensor> tensors_ = {{"a", 0, 0}};
  Engine engine_{tensors_, {0, 1}};
};

TEST_F(RatesOfARestart, AnotherOneIsNoticedOnce) {
  train(20, [](std::int64_t step) {
    return 1e-3 * (1.0 - 0.01 * static_cast<double>(step < 20 ? step : step - 20)) *
           (step < 20 ? 0.3 : 0.6);
  });
  ASSERT_EQ(engine_.findings().all().size(), 1U);
  const Finding& one = engine_.findings().all().front();
  EXPECT_EQ(one.check, Check::config);
  EXPECT_EQ(one.step, 20);
  EXPECT_EQ(one.restart, 1);
  EXPECT_EQ(one.ranks, (std::vector<std::int32_t>{0, 1}));
  EXPECT_FALSE(one.certain);
  EXPECT_NE(one.text.find("that of group 0 was 0.000243 and is 6e-04"), std::string::npos)
      << one.text;
}

TEST_F(RatesOfARestart, AScheduleThatGoesOnIsNothing) {
  train(20, [](std::int64_t step) { return 1e-3 * (1.0 - 0.02 * static_cast<double>(step)); });
  EXPECT_TRUE(engine_.findings().all().empty());
}

TEST_F(RatesOfARestart, AStepOfTheScheduleThatTheEarlierStartTookIsNothing) {
  for (std::int64_t step = 0; step < 20; ++step) {
    engine_.declare(0, 0, 0, 0, "lr", 1e-3);
    engine_.take(StepEvidence(0, step));
  }
  // The earlier start went further than its checkpoint.
  engine_.declare(0, 0, 0, 0, "lr", 1e-4);
  engine_.declare(1, 0, 0, 0, "lr", 1e-4);
  engine_.take(StepEvidence(1, 20));
  EXPECT_TRUE(engine_.findings().all().empty());
}

}  // namespace
}  // namespace trainmon::detect
