// Arguments that come again while the others are new, from rows written by hand.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "detect/engine.h"

namespace trainmon::detect {
namespace {

constexpr std::uint64_t kAllAlike = 7777;  // elements that are all alike

class Calls {
 public:
  explicit Calls(std::vector<std::int32_t> ranks = {0}) : engine_(none_, ranks), ranks_(ranks) {}

  // Every rank is given these arguments, each with bits of its own.
  void give(const std::vector<std::uint64_t>& arguments, std::int32_t restart = 0) {
    StepEvidence evidence(restart, step_++);
    for (const std::int32_t rank : ranks_) {
      for (std::size_t i = 0; i < arguments.size(); ++i) {
        Input one;
        one.rank = rank;
        one.seq = ++seq_;
        one.element = "input." + std::to_string(i);
        one.is_of_whole_batch = true;
        one.count = 16.0;
        one.is_constant = arguments[i] == kAllAlike;
        one.fingerprint = mixed(arguments[i] * 64 + static_cast<std::uint64_t>(rank));
        evidence.add(std::move(one));
      }
    }
    engine_.take(std::move(evidence));
  }
  std::uint64_t fresh() { return ++fresh_; }
  const std::vector<Finding>& found() const { return engine_.findings().all(); }

 private:
  const std::vector<Tensor> none_;
  Engine engine_;
  std::vector<std::int32_t> ranks_;
  std::uint64_t seq_ = 0, fresh_ = 1 << 20;
  std::int64_t step_ = 0;
};

TEST(RepeatedArguments, NoiseThatIsSeededAgainIsSaidOnceOfAllRanks) {
  Calls calls({0, 1});
  for (std::uint64_t step = 0; step < 90; ++step) {
    calls.give({calls.fresh(), step < 30 ? calls.fresh() : step % 5});
  }
  ASSERT_EQ(calls.found().size(), 1U);
  const Finding& one = calls.found().front();
  EXPECT_EQ(check_name(one.check), "input");
  EXPECT_EQ(one.step, 35);
  EXPECT_EQ(one.ranks, (std::vector<std::int32_t>{0, 1}));
  EXPECT_FALSE(one.certain);
  EXPECT_NE(one.text.find("input.1 is given again what it had 5 calls before"), std::string::npos)
      << one.text;
}

// As a recurrent network that has no state where an epoch begins.
TEST(RepeatedArguments, DataOfOneOrderBesideAStateAreNotSaidTwice) {
  Calls calls;
  for (std::uint64_t step = 0; step < 90; ++step) {
    const std::uint64_t data = step % 30;
    if (data == 0) {
      calls.give({data});
    } else {
      calls.give({data, calls.fresh()});
    }
  }
  ASSERT_EQ(calls.found().size(), 1U);
  EXPECT_NE(calls.found().front().text.find("as epochs in one order do"), std::string::npos)
      << calls.found().front().text;
}

// As time steps that are drawn with one seed in each step. A mask may become that of full
// sequences.
TEST(RepeatedArguments, WhatWasNewForLongAndStaysIsSaidUnlessItIsConstant) {
  for (const std::uint64_t stays : {std::uint64_t{5}, kAllAlike}) {
    Calls calls;
    for (std::uint64_t step = 0; step < 120; ++step) {
      calls.give({calls.fresh(), step < 80 ? calls.fresh() : stays});
    }
    ASSERT_EQ(calls.found().size(), stays == kAllAlike ? 0U : 1U);
    if (stays == kAllAlike) continue;
    const Finding& one = calls.found().front();
    EXPECT_EQ(one.step, 81);
    EXPECT_FALSE(one.certain);
    EXPECT_NE(one.text.find("input.1 is given the same again in each call"), std::string::npos)
        << one.text;
  }
}

TEST(RepeatedArguments, OneMaskForAllOrAFewInTurnAreNothing) {
  Calls calls;
  for (std::uint64_t step = 0; step < 200; ++step) {
    calls.give({calls.fresh(), 7, step % 5, step < 30 ? calls.fresh() : 9});
  }
  EXPECT_TRUE(calls.found().empty());
}

TEST(RepeatedArguments, ValuesDrawnFromFewAreNothing) {
  std::mt19937_64 random(3);
  for (const std::uint64_t values : {2U, 5U, 30U, 300U}) {
    Calls calls;
    for (int step = 0; step < 3000; ++step) calls.give({calls.fresh(), random() % values});
    EXPECT_TRUE(calls.found().empty()) << values;
  }
}

TEST(RepeatedArguments, WholeBatchesThatComeAgainAreNotSaidHere) {
  Calls calls;
  for (std::uint64_t step = 0; step < 120; ++step) calls.give({step % 40, 1000 + step % 40});
  for (const Finding& one : calls.found()) {
    EXPECT_EQ(one.text.find("seeded"), std::string::npos) << one.text;
  }
}

}  // namespace
}  // namespace trainmon::detect
