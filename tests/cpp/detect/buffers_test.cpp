// Buffers that part on ranks, or change after they did not, from rows written by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "detect/engine.h"

namespace trainmon::detect {
namespace {

class OfBuffers {
 public:
  explicit OfBuffers(std::int32_t ranks) : engine(tensors_, numbers(ranks)), ranks_(ranks) {}

  // Of every rank; what `bits` says of a step, a buffer and a rank are its elements. 0: no row.
  void steps(int count,
             const std::function<std::uint64_t(std::int64_t, std::uint32_t, std::int32_t)>& bits) {
    for (const std::int64_t end = step_ + count; step_ < end; ++step_) {
      StepEvidence evidence(restart, step_);
      for (std::uint32_t tensor = 0; tensor < tensors_.size(); ++tensor) {
        for (std::int32_t rank = 0; rank < ranks_; ++rank) {
          Observation one;
          one.tensor = tensor;
          one.quantity = Quantity::buffer;
          one.rank = rank;
          one.seq = ++seq_;
          one.is_independent = true;
          const std::uint64_t elements = bits(step_, tensor, rank);
          one.digest = elements;
          if (has_checks) one.fingerprint = elements;
          if (elements != 0) evidence.add(one);
        }
      }
      engine.take(std::move(evidence));
    }
  }
  // On every rank, before the next step.
  void edit() {
    for (std::int32_t rank = 0; rank < ranks_; ++rank)
      engine.announce_edit(restart, rank, seq_ + 1);
  }
  const std::vector<Finding>& found() const { return engine.findings().all(); }

 private:
  static std::vector<std::int32_t> numbers(std::int32_t ranks) {
    std::vector<std::int32_t> all;
    for (std::int32_t r = 0; r < ranks; ++r) all.push_back(r);
    return all;
  }
  const std::vector<Tensor> tensors_ = {{"table", 0, 0, {}, true}, {"mean", 0, 0, {}, true}};

 public:
  Engine engine;
  bool has_checks = true;
  std::int32_t restart = 0;

 private:
  std::int32_t ranks_;
  std::uint64_t seq_ = 0;
  std::int64_t step_ = 0;
};

std::uint64_t same(std::int64_t, std::uint32_t, std::int32_t) {
  return 7;
}
std::uint64_t another_each_step(std::int64_t step, std::uint32_t, std::int32_t) {
  return 100 + static_cast<std::uint64_t>(step);
}

void expect_one(const OfBuffers& training, const std::string& check, std::int64_t step,
                std::vector<std::int32_t> ranks, const std::string& text) {
  ASSERT_EQ(training.found().size(), 1U);
  const Finding& one = training.found().front();
  EXPECT_EQ(check_name(one.check), check);
  EXPECT_EQ(stage_name(one.stage), "forward");
  EXPECT_EQ(one.step, step);
  EXPECT_EQ(one.ranks, ranks);
  EXPECT_EQ(one.tensors, (std::vector<std::uint32_t>{0}));
  EXPECT_FALSE(one.certain);
  EXPECT_NE(one.text.find(text), std::string::npos) << one.text;
}

TEST(Buffers, ThatPartAreSaidOnceWithTheRankOfTheMinority) {
  for (const bool has_checks : {false, true}) {
    for (const std::int32_t ranks : {2, 3}) {
      OfBuffers training(ranks);
      training.has_checks = has_checks;
      const auto parts = [](std::int64_t step, std::uint32_t tensor, std::int32_t rank) {
        const bool is_off = tensor == 0 && rank == 1 && step >= 12;
        return another_each_step(step, tensor, rank) + (is_off ? 1000U : 0U);
      };
      training.steps(40, parts);
      expect_one(training, "replicas", 12,
                 ranks == 2 ? std::vector<std::int32_t>{0, 1} : std::vector<std::int32_t>{1},
                 "differs between ranks");
      EXPECT_EQ(training.found().front().is_one_of_ranks, ranks == 2);
    }
  }
}

TEST(Buffers, ThatRanksKeepForThemselvesAreNothing) {
  OfBuffers training(2);
  training.steps(40, [](std::int64_t step, std::uint32_t, std::int32_t rank) {
    return 2 * static_cast<std::uint64_t>(step) + static_cast<std::uint64_t>(rank) + 1;
  });
  EXPECT_TRUE(training.found().empty());
}

TEST(Buffers, ThatWereAlikeForFewerStepsAreNothing) {
  OfBuffers training(2);
  training.steps(60, [](std::int64_t step, std::uint32_t, std::int32_t rank) {
    const bool is_apart = step % 8 == 0;
    return 1 + 2 * static_cast<std::uint64_t>(step) +
           (is_apart ? static_cast<std::uint64_t>(rank) : 0U);
  });
  EXPECT_TRUE(training.found().empty());
}

TEST(Buffers, ThatChangeAfterTheyDidNotAreSaidOnce) {
  for (const std::int32_t ranks : {1, 3}) {
    OfBuffers training(ranks);
    training.steps(40, [](std::int64_t step, std::uint32_t tensor, std::int32_t) {
      const bool has_changed = tensor == 0 && step >= 20;
      return has_changed ? 8U + static_cast<std::uint64_t>(step >= 30) : 7U;
    });
    std::vector<std::int32_t> all;
    for (std::int32_t rank = 0; rank < ranks; ++rank) all.push_back(rank);
    expect_one(training, "gap", 20, all, "the buffer changed");
  }
}

TEST(Buffers, ThatChangeNoMoreAreSaidOnceOfAll) {
  OfBuffers training(1);
  const auto bits = [](std::int64_t step, std::uint32_t, std::int32_t) {
    return static_cast<std::uint64_t>(std::min<std::int64_t>(step, 59)) + 1;
  };
  training.steps(100, bits);
  ASSERT_EQ(training.found().size(), 1U);
  const Finding& one = training.found().front();
  EXPECT_EQ(one.step, 60);
  EXPECT_EQ(one.tensors.size(), 2U);
  EXPECT_FALSE(one.certain);
  EXPECT_NE(one.text.find("do not change any more"), std::string::npos) << one.text;
}

TEST(Buffers, ThatAnotherStartChangesNoMoreAreSaid) {
  OfBuffers training(1);
  const auto bits = [](std::int64_t step, std::uint32_t, std::int32_t) {
    return static_cast<std::uint64_t>(std::min<std::int64_t>(step, 60)) + 1;
  };
  training.steps(60, bits);
  training.restart = 1;
  training.steps(40, bits);
  ASSERT_EQ(training.found().size(), 1U);
  EXPECT_EQ(training.found().front().step, 61);
}

TEST(Buffers, ThatChangeNowAndThenMayEnd) {
  OfBuffers training(1);
  training.steps(200, [](std::int64_t step, std::uint32_t, std::int32_t) {
    return static_cast<std::uint64_t>(std::min<std::int64_t>(step, 120) * 9 / 10) + 1;
  });
  EXPECT_TRUE(training.found().empty());
}

TEST(Buffers, OfOneRankThatChangesAloneIsOneFinding) {
  OfBuffers training(3);
  training.steps(40, [](std::int64_t step, std::uint32_t tensor, std::int32_t rank) {
    return tensor == 0 && rank == 2 && step >= 20 ? 8U : 7U;
  });
  expect_one(training, "replicas", 20, {2}, "differs between ranks");
}

TEST(Buffers, OfAnAnnouncedEditAreNothing) {
  OfBuffers training(2);
  training.steps(20, same);
  training.edit();
  training.steps(20, [](std::int64_t, std::uint32_t, std::int32_t rank) {
    return 8U + static_cast<std::uint64_t>(rank);
  });
  EXPECT_TRUE(training.found().empty());
}

TEST(Buffers, AreHeldAgainstNothingAcrossALostStepOrARestart) {
  OfBuffers training(2);
  training.steps(20, same);
  training.steps(1,
                 [](std::int64_t, std::uint32_t, std::int32_t rank) { return 7U * (rank == 0); });
  training.steps(1, [](std::int64_t, std::uint32_t, std::int32_t) { return 9U; });
  training.restart = 1;
  training.steps(9, [](std::int64_t, std::uint32_t, std::int32_t) { return 10U; });
  // Rank 0 has a row of the lost step, and it alone is known to have changed after it.
  ASSERT_EQ(training.found().size(), 1U);
  EXPECT_EQ(training.found().front().ranks, std::vector<std::int32_t>{0});
  EXPECT_EQ(training.found().front().step, 21);
}

}  // namespace
}  // namespace trainmon::detect
