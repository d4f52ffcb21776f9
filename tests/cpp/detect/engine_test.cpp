// What holds for all checks together: correct steps give no finding whatever their size, what is
// missing is not checked, what ranks declare is held against them.
#include "detect/training.h"

namespace trainmon::detect {
namespace {

template <typename T>
void expect_clean(int steps, bool has_checks) {
  std::uint64_t seed = 0;
  for (const Formula formula : {Formula::adam, Formula::sgd, Formula::momentum}) {
    for (const int ranks : {1, 2, 3, 8}) {
      for (const float clip : {1e30F, 0.5F}) {
        Training<T> training(++seed, ranks, kSizes, formula);
        training.clip = clip;
        training.has_checks = has_checks;
        for (int step = 0; step < steps; ++step) training.step();
        for (const Finding& one : training.findings().all()) {
          ADD_FAILURE() << check_name(one.check) << " step " << one.step << " tensor "
                        << one.tensors.front() << ": " << one.value << " beyond " << one.bound
                        << ", ranks " << ranks;
        }
        const auto tensor_ranks = static_cast<std::int64_t>(kSizes.size()) * ranks;
        EXPECT_EQ(training.findings().count_of(Check::gap), (steps - 1) * tensor_ranks);
        if (ranks > 1) {
          // Numbers of few bits are round now and then, as limits of clipping are.
          EXPECT_GT(training.findings().count_of(Check::reduce), steps * tensor_ranks * 9 / 10);
          EXPECT_LE(training.findings().count_of(Check::reduce), steps * tensor_ranks);
        }
      }
    }
  }
}

TEST(Engine, CorrectStepsInFloat32GiveNoFinding) {
  expect_clean<float>(40, false);
}

TEST(Engine, CorrectStepsInBfloat16GiveNoFinding) {
  expect_clean<Bf16>(40, false);
}

TEST(Engine, CorrectStepsWithChecksGiveNoFinding) {
  expect_clean<float>(80, true);
  expect_clean<Bf16>(80, true);
}

TEST(Engine, GradientsThatBecomeZeroAreToldWithoutCertainty) {
  Training<float> training(11, 2, kSizes, Formula::adam);
  for (int step = 0; step < 20; ++step) {
    training.after_backward = step < 13 ? std::function<void()>() : [&] {
      for (auto& rank : training.ranks()) {
        for (auto* gradients : {&rank.local, &rank.reduced}) {
          for (float& x : (*gradients)[0]) x = 0.0F;
        }
      }
    };
    training.step();
  }
  ASSERT_FALSE(training.findings().all().empty());
  bool is_told = false;
  for (const Finding& one : training.findings().all()) {
    if (one.check != Check::zero) continue;
    is_told = true;
    EXPECT_FALSE(one.certain);
    EXPECT_EQ(one.step, 13);
    EXPECT_EQ(one.tensors, std::vector<std::uint32_t>{0});
    EXPECT_EQ(one.text,
              "the gradient is zero in three steps in a row, after steps in which it never was");
  }
  EXPECT_TRUE(is_told);
}

// As of an expert that tokens choose now and then, and from step 60 on no more.
std::vector<Finding> of_expert(std::int64_t steps) {
  const std::vector<Tensor> tensors = {{"expert", 0, 0}, {"router", 0, 0}};
  Engine engine(tensors, {0});
  for (std::int64_t step = 0; step < steps; ++step) {
    StepEvidence evidence(0, step);
    for (std::uint32_t tensor = 0; tensor < 2; ++tensor) {
      Observation one;
      one.tensor = tensor;
      one.quantity = Quantity::grad_reduced;
      one.count = 10.0;
      const bool is_zero = tensor == 0 && (step % 6 > 2 || step >= 60);
      one.absmax = one.sum_sq = is_zero ? 0.0 : 1.0;
      one.digest = static_cast<std::uint64_t>(step);
      evidence.add(one);
    }
    engine.take(std::move(evidence));
  }
  return engine.findings_at_end().all();
}

TEST(Engine, AGradientThatStaysZeroToTheEndIsToldWhereItNeverDidForSoLong) {
  EXPECT_TRUE(of_expert(60 + 44).empty());
  const std::vector<Finding> found = of_expert(60 + 45);  // three before, as at other times
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].check, Check::zero);
  EXPECT_EQ(found[0].step, 57);
  EXPECT_EQ(found[0].tensors, std::vector<std::uint32_t>{0});
  EXPECT_FALSE(found[0].certain);
  EXPECT_EQ(found[0].text, "the gradient is zero from here on, and never was for so long before");
}

TEST(Engine, RatesMayFollowSchedulesAndMayNotJump) {
  const auto found = [](const std::vector<double>& rates) {
    Training<float> training(12, 1, {40}, Formula::sgd);
    for (const double rate : rates) {
      training.lr = static_cast<float>(rate);
      training.step();
    }
    return training.findings().all();
  };
  EXPECT_TRUE(found({0.01, 0.02, 0.03, 0.04, 0.05, 0.05, 0.04, 0.03}).empty());     // warm-up
  EXPECT_TRUE(found({0.1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001}).empty());            // steps
  EXPECT_TRUE(found({0.1, 0.08, 0.04, 0.01, 0.1, 0.08, 0.04, 0.01, 0.1}).empty());  // restarts
  EXPECT_TRUE(found({0.0, 0.0, 0.0, 0.0, 0.01, 0.01}).empty());                     // thawing
  EXPECT_TRUE(found({0.0, 0.01, 0.02, 0.03, 0.04}).empty());                        // from zero
  const std::vector<Finding> jump = found({0.01, 0.01, 0.01, 0.01, 0.03, 0.03});
  ASSERT_EQ(jump.size(), 1u);
  EXPECT_EQ(jump.front().step, 4);
  EXPECT_FALSE(jump.front().certain);
  EXPECT_EQ(jump.front().text,
            "lr of group 0 changed from 0.009999999776482582 to "
            "0.029999999329447746");
}

TEST(Engine, WhatNeverHeldIsSaidOnceAndNotAsCertain) {
  // Gradients that are doubled in every step, and then a fault beside them.
  Training<float> training(13, 2, kSizes, Formula::adam);
  for (int step = 0; step < 12; ++step) {
    training.after_backward = [&] {
      for (auto& rank : training.ranks()) {
        for (auto& g : rank.reduced) {
          for (float& x : g) x *= 2.0F;
        }
      }
      if (step == 7) training.ranks()[1].reduced[4][3] += 1.0F;
    };
    training.step();
  }
  const Finding& first = training.findings().all().front();
  EXPECT_EQ(check_name(first.check), "reduce");
  EXPECT_EQ(first.step, 0);
  EXPECT_FALSE(first.certain);
  const auto verdict = training.findings().verdict();
  ASSERT_TRUE(verdict);
  expect_place(training.findings().all()[*verdict], Check::replicas, Stage::grad_reduced, {0, 1},
               {4});
}

TEST(Engine, AValueThatChangesFromTheSecondStepOnFollowsASchedule) {
  for (const std::int64_t from : {1, 3}) {
    const std::vector<Tensor> tensors = {{"w", 0, 0}};
    Engine engine(tensors, {0});
    for (std::int64_t step = 0; step < 8; ++step) {
      const auto since = static_cast<double>(std::max<std::int64_t>(0, step + 1 - from));
      engine.declare(0, 0, 0, 0, "betas.0", 0.95 - 0.01 * since);
      engine.take(StepEvidence(0, step));
    }
    const std::vector<Finding> found = engine.findings().all();
    ASSERT_EQ(found.size(), from == 1 ? 0U : 1U);
    for (const Finding& one : found) EXPECT_EQ(one.step, 3);
  }
}

TEST(Engine, RanksAreHeldAgainstWhatTheyDeclareThemselves) {
  const std::vector<Tensor> tensors = {{"w", 0, 0}};
  Engine engine(tensors, {0, 1});
  std::uint64_t seq = 0;
  for (std::int64_t step = 0; step < 4; ++step) {
    StepEvidence evidence(0, step);
    for (const std::int32_t rank : {0, 1}) {
      const double lr = rank == 0 ? 0.1 : 0.2;
      for (const auto& [name, value] : {std::pair("lr", lr),
                                        {"momentum", 0.0},
                                        {"dampening", 0.0},
                                        {"nesterov", 0.0},
                                        {"weight_decay", 0.0}}) {
        engine.declare(0, rank, 0, 0, name, value);
      }
      const auto add = [&](Quantity quantity, double sum) {
        Observation one;
        one.quantity = quantity;
        one.rank = rank;
        one.count = 1.0;
        one.sum = sum;
        one.sum_sq = sum * sum;
        one.absmax = std::abs(sum);
        one.digest = std::bit_cast<std::uint64_t>(sum);
        one.seq = seq++;
        evidence.add(one);
      };
      add(Quantity::weight_before, 1.0 - lr * static_cast<double>(step));
      add(Quantity::grad_reduced, 1.0);
      add(Quantity::weight_after, 1.0 - lr * static_cast<double>(step + 1));
    }
    engine.take(std::move(evidence));
  }
  EXPECT_EQ(engine.findings().count_of(Check::update), 8);
  EXPECT_TRUE(engine.findings().all().empty());
}

TEST(Engine, WhatIsMissingIsNotChecked) {
  // Every second step, one rank of three, and a step from another restart.
  const std::vector<Tensor> tensors = {{"w", 0, 0}};
  Engine engine(tensors, {0, 1, 2});
  for (const auto& [restart, step] : {std::pair(0, 0), {0, 2}, {1, 3}, {1, 5}}) {
    StepEvidence evidence(restart, step);
    for (const Quantity quantity : {Quantity::weight_before, Quantity::weight_after}) {
      Observation one;
      one.quantity = quantity;
      one.digest = static_cast<std::uint64_t>(step * 2 + static_cast<int>(quantity));
      evidence.add(one);
    }
    engine.take(std::move(evidence));
  }
  EXPECT_TRUE(engine.findings().all().empty());
  EXPECT_EQ(engine.findings().count_of(Check::gap), 0);
  EXPECT_EQ(engine.findings().count_of(Check::reduce), 0);
  EXPECT_EQ(engine.findings().count_of(Check::replicas), 0);
}

// What leaves every statistic as it was, or the sum.
TEST(Engine, ChecksFindWhatStatisticsCannot) {
  using Fault = std::function<void(Training<float>&)>;
  struct Case {
    const char* name;
    Fault before, gradients;  // between steps; between the reduction and the step
    Check check;
    Stage stage;
    std::vector<std::int32_t> ranks;
  };
  const std::vector<Case> cases = {
      {"two weights change places",
       [](Training<float>& t) { std::swap(t.ranks()[1].w[3][20], t.ranks()[1].w[3][36]); },
       nullptr,
       Check::gap,
       Stage::weights,
       {1}},
      {"two errors of all ranks that cancel",
       nullptr,
       [&](Training<float>& t) {
         for (auto& rank : t.ranks()) {
           rank.reduced[3][20] += 0.03125F;
           rank.reduced[3][37] -= 0.03125F;
         }
       },
       Check::reduce,
       Stage::grad_reduced,
       {0, 1}},
      {"two errors of a first moment that cancel",
       [](Training<float>& t) {
         t.ranks()[1].m[3][20] += 0.03125F;
         t.ranks()[1].m[3][37] -= 0.03125F;
       },
       nullptr,
       Check::exp_avg,
       Stage::moments,
       {1}},
  };
  for (const Case& one : cases) {
    for (const bool has_checks : {false, true}) {
      SCOPED_TRACE(one.name);
      Training<float> training(21, 2, kSizes, Formula::adam);
      training.has_checks = has_checks;
      const auto bind = [&](const Fault& fault) {
        return fault ? [&] { fault(training); } : std::function<void()>();
      };
      for (int step = 0; step < 12; ++step) {
        training.before_step = step == 7 ? bind(one.before) : nullptr;
        training.after_backward = step == 7 ? bind(one.gradients) : nullptr;
        training.step();
      }
      const auto verdict = training.findings().verdict();
      if (!has_checks) {
        const bool is_seen = verdict && training.findings().all()[*verdict].check == one.check;
        EXPECT_FALSE(is_seen) << "statistics see it, too";
        continue;
      }
      ASSERT_TRUE(verdict);
      const Finding& found = training.findings().all()[*verdict];
      expect_place(found, one.check, one.stage, one.ranks, {3});
      EXPECT_NE(found.evidence, Evidence::statistics);
    }
  }
}

}  // namespace
}  // namespace trainmon::detect
