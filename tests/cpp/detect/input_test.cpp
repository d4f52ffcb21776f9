// Batches that are given again, to the same rank or to another, from rows written by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "detect/engine.h"

namespace trainmon::detect {
namespace {

constexpr std::uint64_t kConstant = std::uint64_t{1} << 40;  // elements that are all alike

class InputRows : public ::testing::Test {
 protected:
  explicit InputRows(std::vector<std::int32_t> ranks = {0}) : engine(tensors, std::move(ranks)) {}

  // One call on one rank: the arguments are numbered, and equal batches have equal numbers.
  void give(std::int32_t rank, std::vector<std::uint64_t> batch, std::int32_t call = 0,
            std::int32_t accum = 0, bool is_of_whole_batch = true) {
    for (std::size_t i = 0; i < batch.size(); ++i) {
      Input one;
      one.rank = rank;
      one.call = call;
      one.accum = accum;
      one.seq = ++seq_;
      one.element = "input." + std::to_string(i);
      one.is_of_whole_batch = is_of_whole_batch && !are_unrelated;
      one.is_unrelated = are_unrelated;
      one.is_constant = batch[i] == kConstant;
      one.fingerprint = batch[i];
      given_.push_back(one);
    }
  }
  void give_entropy(std::int32_t rank, double bits) {
    Input one;
    one.rank = rank;
    one.seq = ++seq_;
    one.element = "input.0";
    one.entropy = bits;
    given_.push_back(one);
  }
  void end_step() {
    StepEvidence evidence(restart, step_++);
    for (Input& one : given_) evidence.add(std::move(one));
    given_.clear();
    engine.take(std::move(evidence));
  }
  // A step in which one rank is given one batch.
  void take(std::uint64_t batch) {
    give(0, {batch});
    end_step();
  }
  std::vector<Finding> found() const { return engine.findings().all(); }

  std::vector<Tensor> tensors;
  Engine engine;
  std::int32_t restart = 0;
  bool are_unrelated = false;  // ranks
  std::uint64_t seq_ = 0;
  std::int64_t step_ = 0;

 private:
  std::vector<Input> given_;
};
class InputsOfTwo : public InputRows {
 protected:
  InputsOfTwo() : InputRows({0, 1}) {}
};
class InputsOfThree : public InputRows {
 protected:
  InputsOfThree() : InputRows({0, 1, 2}) {}
};

TEST_F(InputRows, NewBatchesAreSound) {
  for (std::uint64_t i = 0; i < 10000; ++i) take(i);
  EXPECT_EQ(engine.findings().count_of(Check::input), 10000);
  EXPECT_EQ(engine.findings().count_of(Check::input, Evidence::fingerprints), 10000);
  EXPECT_TRUE(found().empty());
}

// Two forwards in each step; from step 20 on the first has a fixed batch, as prototypes are.
TEST_F(InputRows, AFixedBatchBesideNewOnesIsNoticed) {
  for (std::uint64_t i = 0; i < 40; ++i) {
    give(0, {i < 20 ? i : 1000});
    give(0, {2000 + i}, 1);
    end_step();
  }
  ASSERT_EQ(found().size(), 1U);
  EXPECT_FALSE(found()[0].certain);
}

// Both are stuck.
TEST_F(InputRows, TwoForwardsOfALoaderThatIsStuckAreCertain) {
  for (std::uint64_t i = 0; i < 40; ++i) {
    give(0, {i < 20 ? i : 1000});
    give(0, {i < 20 ? 2000 + i : 3000}, 1);
    end_step();
  }
  ASSERT_TRUE(engine.findings().verdict());
  EXPECT_EQ(engine.findings().all()[*engine.findings().verdict()].step, 21);
}

TEST_F(InputRows, ABatchThatIsGivenForEverIsCertainFromItsStepOn) {
  for (std::uint64_t i = 0; i < 12; ++i) take(i);
  for (int i = 0; i < 2; ++i) take(11);
  EXPECT_TRUE(found().empty());
  for (int i = 0; i < 30; ++i) take(11);
  ASSERT_EQ(found().size(), 1U);
  const Finding one = found()[0];
  EXPECT_EQ(one.check, Check::input);
  EXPECT_EQ(one.stage, Stage::input);
  EXPECT_EQ(one.step, 12);
  EXPECT_EQ(one.ranks, std::vector<std::int32_t>{0});
  EXPECT_TRUE(one.tensors.empty());
  EXPECT_TRUE(one.certain);
  EXPECT_EQ(engine.findings().verdict(), 0U);
}

// Sixteen batches in one order: from step 40 on each sixteenth step is recorded.
TEST_F(InputRows, EpochsOfWhichFewerStepsAreRecordedFromAStepOnAreNoVerdict) {
  for (std::uint64_t i = 0; i < 40; ++i) take(i % 16);
  for (step_ = 48; step_ < 480; step_ += 15) take(static_cast<std::uint64_t>(step_ % 16));
  EXPECT_FALSE(engine.findings().verdict());
}

TEST_F(InputRows, ALoaderThatIsStuckIsFoundWhereFewStepsAreRecorded) {
  for (std::uint64_t i = 0; i < 30; ++i, step_ += 9) take(i < 20 ? i : 20);
  EXPECT_EQ(engine.findings().all()[*engine.findings().verdict()].step, 210);
}

TEST_F(InputRows, ABatchThatIsGivenTwiceIsNoticed) {
  for (const std::uint64_t batch : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 10, 11, 11, 12}) take(batch);
  ASSERT_EQ(found().size(), 1U);
  EXPECT_EQ(found()[0].step, 10);
  EXPECT_FALSE(found()[0].certain);
}

TEST_F(InputRows, OneBatchFromTheStartIsOneNotice) {
  for (int i = 0; i < 100; ++i) take(7);
  ASSERT_EQ(found().size(), 1U);
  EXPECT_EQ(found()[0].step, 1);
  EXPECT_FALSE(found()[0].certain);
}

TEST_F(InputRows, AFewStepsAreTooFewToTell) {
  for (int i = 0; i < 8; ++i) take(7);
  EXPECT_TRUE(found().empty());
}

TEST_F(InputRows, ABatchThatIsRepeatedEquallyOftenAgainAndAgainIsMeant) {
  std::uint64_t batch = 0;
  const auto repeat = [&](int times) {
    for (int i = 0; i < 12; ++i) take(++batch);
    for (int i = 0; i < times; ++i) take(batch);
  };
  repeat(4);
  take(++batch);
  ASSERT_EQ(found().size(), 1U);
  EXPECT_TRUE(found()[0].certain);  // once it may be a fault
  for (int i = 0; i < 20; ++i) repeat(4);
  ASSERT_EQ(found().size(), 1U);
  EXPECT_EQ(found()[0].step, 12);
  EXPECT_FALSE(found()[0].certain);
  EXPECT_NE(found()[0].text.find("4 times in a row, as in later steps"), std::string::npos);
  EXPECT_FALSE(engine.findings().verdict());
  // A loader that is stuck is found all the same, in the step after the last that is meant.
  const auto steps = static_cast<std::int64_t>(seq_);
  repeat(30);
  ASSERT_EQ(found().size(), 2U);
  EXPECT_EQ(found()[1].step, steps + 12 + 4);
  EXPECT_TRUE(found()[1].certain);
}

// As of a sensor that is off now and then.
TEST_F(InputRows, DataThatRepeatThemselvesNowMoreNowLessOftenAreMeant) {
  std::uint64_t batch = 0;
  for (const int times : {4, 5, 7, 3, 4, 9, 30}) {
    for (int i = 0; i < 12; ++i) take(++batch);
    ASSERT_EQ(found().size(), batch > 12 ? 1U : 0U);
    EXPECT_TRUE(found().empty() || found()[0].certain == (batch < 48));
    for (int i = 0; i < times; ++i) take(batch);
  }
  ASSERT_EQ(found().size(), 1U);
  EXPECT_EQ(found()[0].step, 12);
  EXPECT_NE(found()[0].text.find("several times in a row, as in later steps"), std::string::npos);
}

// As silence in a recording, or the padding behind sequences.
TEST_F(InputRows, ConstantBatchesInARowAreSound) {
  for (std::uint64_t step = 0; step < 60; ++step) take(step >= 20 && step < 30 ? kConstant : step);
  EXPECT_TRUE(found().empty());
}

// As passes over one batch that a limit ends: sooner at first, and later not.
TEST_F(InputRows, LongerRepetitionsThatEndAgainAndAgainAreMeant) {
  std::uint64_t batch = 100;
  const auto repeat = [&](int times) {
    ++batch;
    for (int i = 0; i < times; ++i) take(batch);
  };
  for (int i = 0; i < 20; ++i) repeat(1);
  for (const int times : {4, 4, 4, 4, 9}) repeat(times);
  const auto certain = [&] {
    const auto all = found();
    return std::ranges::count_if(all, &Finding::certain);
  };
  EXPECT_EQ(certain(), 1);
  for (const int times : {4, 8, 3}) repeat(times);
  EXPECT_EQ(certain(), 0);
}

TEST_F(InputRows, EveryBatchTwiceIsOneNotice) {
  for (std::uint64_t i = 0; i < 200; ++i) take(i / 2);
  ASSERT_EQ(found().size(), 1U);
  EXPECT_FALSE(found()[0].certain);
}

TEST_F(InputRows, EpochsInOneOrderAreOneNoticeAndAStuckLoaderIsStillFound) {
  for (std::uint64_t i = 0; i < 60; ++i) take(i % 20);
  ASSERT_EQ(found().size(), 1U);
  EXPECT_EQ(found()[0].step, 20);
  EXPECT_FALSE(found()[0].certain);
  EXPECT_NE(found()[0].text.find("the batch of step 0 again"), std::string::npos);
  for (int i = 0; i < 5; ++i) take(19);
  ASSERT_EQ(found().size(), 2U);
  EXPECT_EQ(found()[1].step, 60);
  EXPECT_TRUE(found()[1].certain);
}

TEST_F(InputRows, FewBatchesInAnyOrderAreNeverCertain) {
  std::uint64_t state = 1;
  for (int i = 0; i < 5000; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    take((state >> 40) % 5);
  }
  ASSERT_EQ(found().size(), 1U);
  EXPECT_FALSE(found()[0].certain);
}

// A mask, positions and what a second forward of each step is given may be the same in each step.
TEST_F(InputRows, ArgumentsThatStayAreNoBatchGivenAgain) {
  for (std::uint64_t i = 0; i < 30; ++i) {
    give(0, {i, 77, 78});
    end_step();
  }
  EXPECT_TRUE(found().empty());
}

TEST_F(InputRows, CallsOfAStepAreComparedEachWithItsOwn) {
  for (std::uint64_t i = 0; i < 30; ++i) {
    give(0, {i});
    give(0, {i}, 1);
    end_step();
  }
  EXPECT_TRUE(found().empty());
  for (std::uint64_t i = 30; i < 60; ++i) {
    give(0, {i});
    give(0, {77}, 1);
    end_step();
  }
  ASSERT_EQ(found().size(), 1U);
  EXPECT_EQ(found()[0].step, 31);
}

// The forward of an auxiliary loss, with the same points each time, moves the data to another
// number. A loader that is stuck afterwards is still found.
TEST_F(InputRows, AForwardThatBeginsLaterGivesTheOthersOtherNumbers) {
  for (const int every : {1, 2}) {
    for (std::uint64_t i = 0; i < 20; ++i) take(1000 * every + i);
    for (std::uint64_t i = 20; i < 60; ++i) {
      const bool has_points = i % every == 0;
      if (has_points) give(0, {77}, 0);
      give(0, {1000 * every + i}, has_points ? 1 : 0);
      end_step();
    }
    for (const Finding& one : found()) EXPECT_FALSE(one.certain);
  }
  for (std::uint64_t i = 0; i < 20; ++i) take(5000 + i);
  for (int i = 0; i < 5; ++i) take(9999);
  const std::vector<Finding> all = found();
  ASSERT_FALSE(all.empty());
  EXPECT_TRUE(all.back().certain);
  EXPECT_EQ(all.back().step, 141);
}

TEST_F(InputRows, AStuckLoaderIsFoundWhereSomeStepsHaveOneForwardMore) {
  for (std::uint64_t i = 0; i < 60; ++i) {
    give(0, {i < 30 ? i : 999}, 0);
    if (i % 3 == 0) give(0, {5000 + i}, 1);
    end_step();
  }
  const std::vector<Finding> all = found();
  ASSERT_FALSE(all.empty());
  EXPECT_TRUE(all.front().certain);
  // Of the steps with one forward, 31 is the first with the batch.
  EXPECT_EQ(all.front().step, 32);
}

TEST_F(InputRows, MicroStepsOfAStepAreCalls) {
  for (std::uint64_t i = 0; i < 20; i += 2) {
    give(0, {i}, 0, 0);
    give(0, {i + 1}, 0, 1);
    end_step();
  }
  for (int i = 0; i < 4; ++i) {
    give(0, {100}, 0, 0);
    give(0, {100}, 0, 1);
    end_step();
  }
  ASSERT_EQ(found().size(), 1U);
  EXPECT_EQ(found()[0].step, 10);
  EXPECT_TRUE(found()[0].certain);
}

// As where LBFGS comes behind Adam: its closure has the batch of the step, more or less often.
TEST_F(InputRows, ABatchThatIsGivenAgainWithinItsStepAloneIsNoticedOnce) {
  for (std::uint64_t i = 0; i < 14; ++i) take(i);
  for (std::uint64_t i = 14; i < 40; ++i) {
    for (std::int32_t accum = 0; accum < 6 + static_cast<std::int32_t>(i % 3); ++accum) {
      give(0, {i}, 0, accum);
    }
    end_step();
  }
  ASSERT_EQ(found().size(), 1U);
  EXPECT_EQ(found()[0].step, 14);
  EXPECT_FALSE(found()[0].certain);
}

TEST_F(InputRows, AnEditMayGoBackInTheDataAndAnotherStartMayHaveOthers) {
  for (std::uint64_t i = 0; i < 20; ++i) take(i);
  engine.announce_edit(0, 0, seq_ + 1);
  for (std::uint64_t i = 15; i < 30; ++i) take(i);
  restart = 1;
  for (std::uint64_t i = 30; i < 50; ++i) take(i);
  EXPECT_TRUE(found().empty());
}

TEST_F(InputRows, AStartThatGoesOnWithTheFirstBatchesAgainIsNoticedOnce) {
  for (std::uint64_t i = 0; i < 20; ++i) take(i);
  restart = 1;
  for (std::uint64_t i = 2; i < 40; ++i) take(i);
  ASSERT_EQ(found().size(), 1U);
  EXPECT_EQ(found()[0].step, 20);
  EXPECT_FALSE(found()[0].certain);
  EXPECT_NE(found()[0].text.find("from that of step 2 on"), std::string::npos);
}

TEST_F(InputRows, AnOlderStartWhoseStepsComeLaterIsNotHeldAgainstANewerOne) {
  restart = 1;  // it went back to step 0, and took fewer steps than the one before it
  for (std::uint64_t i = 0; i < 10; ++i) take(i);
  restart = 0;
  for (std::uint64_t i = 0; i < 20; ++i) take(i);
  EXPECT_TRUE(found().empty());
}

TEST_F(InputRows, AStartThatTakesTheSameStepsAgainOrHasEpochsInOneOrderIsSound) {
  for (std::uint64_t i = 0; i < 20; ++i) take(i);
  restart = 1;
  step_ = 10;  // of a checkpoint
  for (std::uint64_t i = 10; i < 30; ++i) take(i);
  restart = 2;
  for (std::uint64_t i = 30; i < 60; ++i) take(i % 40);
  const auto of_start_2 = found();
  restart = 3;
  for (std::uint64_t i = 60; i < 90; ++i) take(i % 40);
  EXPECT_TRUE(of_start_2.size() <= 1U);  // epochs in one order: said once
  EXPECT_EQ(found().size(), of_start_2.size());
}

// Its weights are loaded in the middle of a step.
TEST_F(InputRows, AnEditBetweenTheForwardAndTheStepMayGoBackInTheData) {
  const auto take_step = [&](std::uint64_t batch, bool is_edited) {
    StepEvidence evidence(0, static_cast<std::int64_t>(seq_));
    evidence.add(Input{.seq = ++seq_, .element = "input.0", .fingerprint = batch});
    if (is_edited) engine.announce_edit(0, 0, ++seq_);
    Observation row;
    row.quantity = Quantity::weight_before;
    row.seq = ++seq_;
    evidence.add(row);
    engine.take(std::move(evidence));
  };
  tensors = {{"w", 0, 0}};
  for (std::uint64_t i = 0; i < 20; ++i) take_step(i, i == 19);
  for (std::uint64_t i = 15; i < 30; ++i) take_step(i, false);
  EXPECT_TRUE(found().empty());
}

TEST_F(InputRows, WithoutAFingerprintNothingIsChecked) {
  for (int i = 0; i < 20; ++i) {
    StepEvidence evidence(0, i);
    evidence.add(Input{.element = "input.0"});
    engine.take(std::move(evidence));
  }
  EXPECT_EQ(engine.findings().count_of(Check::input), 0);
  EXPECT_TRUE(found().empty());
}

TEST_F(InputsOfTwo, RanksThatBeginToHaveOneBatchAreCertain) {
  for (std::uint64_t i = 0; i < 30; ++i) {
    give(0, {i});
    give(1, {i < 15 ? i + 1000 : i});
    end_step();
  }
  ASSERT_EQ(found().size(), 1U);
  EXPECT_EQ(found()[0].step, 15);
  EXPECT_EQ(found()[0].ranks, (std::vector<std::int32_t>{0, 1}));
  EXPECT_TRUE(found()[0].certain);
}

TEST_F(InputsOfTwo, RanksThatNothingRelatesAreNoticedWhereTheyBeginToAndNotFromTheStart) {
  are_unrelated = true;
  for (const std::uint64_t from : {0U, 15U}) {
    for (std::uint64_t i = 0; i < 30; ++i) {
      give(0, {100 * from + i});
      give(1, {100 * from + i + (i < from ? 10'000 : 0)});
      end_step();
    }
    ASSERT_EQ(found().size(), from == 0 ? 0U : 1U);
    ++restart;
  }
  EXPECT_EQ(found()[0].step, 30 + 15);
  EXPECT_EQ(found()[0].ranks, (std::vector<std::int32_t>{0, 1}));
  EXPECT_FALSE(found()[0].certain);
}

TEST_F(InputsOfTwo, OneRankThatRepeatsBatchesEquallyOftenDoesNotExcuseTheOther) {
  for (std::uint64_t i = 0; i < 60; ++i) {
    give(0, {i % 16 < 12 ? i : i - i % 4 - 1});
    give(1, {1000 + std::min<std::uint64_t>(i, 11)});
    end_step();
  }
  ASSERT_EQ(found().size(), 2U);
  EXPECT_EQ(found()[0].ranks, std::vector<std::int32_t>{1});
  EXPECT_TRUE(found()[0].certain);
  EXPECT_EQ(found()[1].ranks, std::vector<std::int32_t>{0});
  EXPECT_FALSE(found()[1].certain);
}

TEST_F(InputsOfTwo, OneBatchForAllRanksFromTheStartIsOneNotice) {
  for (std::uint64_t i = 0; i < 50; ++i) {
    give(0, {i});
    give(1, {i});
    end_step();
  }
  ASSERT_EQ(found().size(), 1U);
  EXPECT_EQ(found()[0].step, 0);
  EXPECT_EQ(found()[0].ranks, (std::vector<std::int32_t>{0, 1}));
  EXPECT_FALSE(found()[0].certain);
}

TEST_F(InputsOfTwo, TensorParallelRanksAreRightlyGivenTheSame) {
  for (std::uint64_t i = 0; i < 50; ++i) {
    give(0, {i}, 0, 0, false);
    give(1, {i}, 0, 0, false);
    end_step();
  }
  EXPECT_TRUE(found().empty());
}

TEST_F(InputsOfTwo, OneBatchInCommonOnceIsNoticed) {
  for (std::uint64_t i = 0; i < 30; ++i) {
    give(0, {i});
    give(1, {i == 20 || i == 25 ? i : i + 1000});
    end_step();
  }
  ASSERT_EQ(found().size(), 1U);
  EXPECT_EQ(found()[0].step, 20);
  EXPECT_EQ(found()[0].ranks, (std::vector<std::int32_t>{0, 1}));
  EXPECT_FALSE(found()[0].certain);
}

TEST_F(InputsOfTwo, RanksThatAreFewStepsBehindOneAnotherAreSound) {
  for (std::uint64_t i = 0; i < 30; ++i) {
    give(0, {i + 1});
    give(1, {i});
    end_step();
  }
  EXPECT_TRUE(found().empty());
}

TEST_F(InputsOfThree, TheRanksThatShareABatchAreNamed) {
  for (std::uint64_t i = 0; i < 30; ++i) {
    give(0, {i});
    give(1, {i + 1000});
    give(2, {i < 15 ? i + 2000 : i});
    end_step();
  }
  ASSERT_EQ(found().size(), 1U);
  EXPECT_EQ(found()[0].step, 15);
  EXPECT_EQ(found()[0].ranks, (std::vector<std::int32_t>{0, 2}));
}

TEST_F(InputRows, AnEntropyFarFromTheLastOnesIsNoticedOnce) {
  for (int i = 0; i < 40; ++i) give_entropy(0, 9.0 + 0.01 * (i % 3)), end_step();
  EXPECT_TRUE(found().empty());
  give_entropy(0, 9.3), end_step();  // within the least spread
  EXPECT_TRUE(found().empty());
  for (int i = 0; i < 5; ++i) give_entropy(0, 2.0), end_step();
  ASSERT_EQ(found().size(), 1U);
  EXPECT_EQ(found()[0].step, 41);
  EXPECT_FALSE(found()[0].certain);
  EXPECT_NEAR(found()[0].value, 7.01, 1e-9);
  EXPECT_NE(found()[0].text.find("input.0 is 2 bits"), std::string::npos) << found()[0].text;
}

// Times of a batch: most are different, and some are equal.
class InputRowsOfFewIds : public InputRows,
                          public ::testing::WithParamInterface<std::pair<int, unsigned>> {};

TEST_P(InputRowsOfFewIds, TheirEntropyIsThatOfMostOrLess) {
  const auto [ids, of] = GetParam();
  std::mt19937 random(1);
  for (int i = 0; i < 5000; ++i) {
    std::map<std::mt19937::result_type, double> counts;
    for (int drawn = 0; drawn < ids; ++drawn) counts[random() % of] += 1.0;
    double bits = 0.0;
    for (const auto& [id, count] : counts) bits -= count / ids * std::log2(count / ids);
    give_entropy(0, bits), end_step();
  }
  EXPECT_TRUE(found().empty());
  give_entropy(0, 0.0), end_step();
  EXPECT_EQ(found().size(), 1U);
}

INSTANTIATE_TEST_SUITE_P(Few, InputRowsOfFewIds,
                         ::testing::Values(std::pair{16, 400U}, std::pair{8, 1000U},
                                           std::pair{4, 1000U}));

TEST_F(InputRows, TheEntropyOfAMaskMayBeAnything) {
  for (int i = 0; i < 40; ++i) give_entropy(0, i % 9 == 8 ? 1.0 : 0.0), end_step();
  EXPECT_TRUE(found().empty());
}

}  // namespace
}  // namespace trainmon::detect
