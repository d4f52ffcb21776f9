// Ranks that began a start at different steps, as the reader tells the engine.
#include "detect/training.h"

namespace trainmon::detect {
namespace {

const std::map<std::int32_t, std::int64_t> kSteps = {{0, 15}, {1, 15}, {2, 10}};

void lose_moments(Training<float>& training) {
  for (auto& moment : training.ranks()[2].m) {
    for (float& x : moment) x = 0.25F;
  }
}

TEST(StartSteps, WeightsThatPartAndStayApartAreCertain) {
  Training<float> training(60, 3, kSizes, Formula::adam);
  training.engine().tell_start(0, kSteps, true);
  lose_moments(training);
  training.step();
  EXPECT_FALSE(training.findings().verdict());
  training.step();
  const auto verdict = training.findings().verdict();
  ASSERT_TRUE(verdict);
  const Finding& one = training.findings().all()[*verdict];
  EXPECT_EQ(one.ranks, std::vector<std::int32_t>{2});
  EXPECT_EQ(one.step, 0);
  EXPECT_EQ(stage_name(one.stage), "start");
  EXPECT_NE(one.text.find("step 10 on rank 2, step 15 on rank 0 and 1 more"), std::string::npos);
  EXPECT_TRUE(one.text.ends_with("They differ in moments")) << one.text;
}

TEST(StartSteps, WeightsThatAProgramBringsTogetherAreNoticed) {
  Training<float> training(61, 3, kSizes, Formula::adam);
  training.engine().tell_start(0, kSteps, true);
  lose_moments(training);
  for (int step = 0; step < 5; ++step) {
    training.before_step = [&] { training.ranks()[2].w = training.ranks()[0].w; };
    training.step();
    EXPECT_FALSE(training.findings().verdict());
  }
}

TEST(StartSteps, CountsAloneAreNoticed) {
  for (const bool are_aligned : {false, true}) {
    Training<float> training(62, 3, kSizes, Formula::adam);
    training.engine().tell_start(0, kSteps, are_aligned);
    for (int step = 0; step < 3; ++step) training.step();
    ASSERT_EQ(training.findings().all().size(), 1U);
    EXPECT_FALSE(training.findings().all().front().certain);
  }
}

TEST(StartSteps, RanksThatCountForThemselvesAreNothing) {
  Training<float> training(63, 3, kSizes, Formula::adam);
  training.are_unrelated = true;
  training.engine().tell_start(0, kSteps, false);
  for (int step = 0; step < 3; ++step) training.step();
  EXPECT_TRUE(training.findings().all().empty());
}

}  // namespace
}  // namespace trainmon::detect
