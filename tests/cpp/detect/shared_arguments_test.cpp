// Arguments that ranks come to share while others stay their own, from rows written by hand.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "detect/engine.h"

namespace trainmon::detect {
namespace {

class Ranks {
 public:
  explicit Ranks(std::int32_t count) : count_(count), engine_(none_, numbers(count)) {}

  // Each of the arguments is one for all ranks, or one of each.
  void give(const std::vector<bool>& are_shared, std::int32_t restart = 0, bool is_new = true) {
    StepEvidence evidence(restart, step_++);
    for (std::size_t i = 0; i < are_shared.size(); ++i) {
      const std::uint64_t of_all = is_new ? ++fresh_ : 1;
      for (std::int32_t rank = 0; rank < count_; ++rank) {
        Input one;
        one.rank = rank;
        one.seq = ++seq_;
        one.element = "input." + std::to_string(i);
        one.is_of_whole_batch = true;
        one.fingerprint = mixed(are_shared[i] ? of_all : ++fresh_);
        evidence.add(std::move(one));
      }
    }
    engine_.take(std::move(evidence));
  }
  const std::vector<Finding>& found() const { return engine_.findings().all(); }

 private:
  static std::vector<std::int32_t> numbers(std::int32_t count) {
    std::vector<std::int32_t> ranks;
    for (std::int32_t rank = 0; rank < count; ++rank) ranks.push_back(rank);
    return ranks;
  }
  const std::vector<Tensor> none_;
  std::int32_t count_;
  Engine engine_;
  std::uint64_t seq_ = 0, fresh_ = 1 << 20;
  std::int64_t step_ = 0;
};

TEST(SharedArguments, RanksThatDrawTheSameNoiseFromARestartOnAreSaidOnce) {
  Ranks ranks(3);
  for (int step = 0; step < 40; ++step) ranks.give({false, false});
  for (int step = 0; step < 40; ++step) ranks.give({false, true}, 1);
  ASSERT_EQ(ranks.found().size(), 1U);
  const Finding& one = ranks.found().front();
  EXPECT_EQ(check_name(one.check), "input");
  EXPECT_EQ(one.step, 40);
  EXPECT_EQ(one.restart, 1);
  EXPECT_EQ(one.ranks, (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_FALSE(one.certain);
  EXPECT_NE(one.text.find("input.1 is the same on ranks"), std::string::npos) << one.text;
}

TEST(SharedArguments, WhatRanksShareFromTheStartOrByChanceIsNothing) {
  Ranks ranks(2);
  for (int step = 0; step < 40; ++step) ranks.give({false, true});
  for (int step = 0; step < 40; ++step) ranks.give({false, step % 12 < 6});
  EXPECT_TRUE(ranks.found().empty());
}

TEST(SharedArguments, OneValueThatStaysIsNothing) {
  Ranks ranks(2);
  for (int step = 0; step < 40; ++step) ranks.give({false, false});
  for (int step = 0; step < 40; ++step) ranks.give({false, true}, 0, false);
  EXPECT_TRUE(ranks.found().empty());
}

TEST(SharedArguments, AWholeBatchIsNotSaidHere) {
  Ranks ranks(2);
  for (int step = 0; step < 40; ++step) ranks.give({false, false});
  for (int step = 0; step < 40; ++step) ranks.give({true, true});
  for (const Finding& one : ranks.found()) {
    EXPECT_EQ(one.text.find("input.1 is the same"), std::string::npos) << one.text;
  }
}

}  // namespace
}  // namespace trainmon::detect
