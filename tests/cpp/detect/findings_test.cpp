// Which of several findings is the verdict, and how those of one place become one.
#include "detect/findings.h"

#include <gtest/gtest.h>

namespace trainmon::detect {
namespace {

Finding finding(std::int64_t step, Check check, Stage stage, std::vector<std::int32_t> ranks,
                std::uint32_t tensor, bool certain = true) {
  Finding one;
  one.step = step;
  one.check = check;
  one.stage = stage;
  one.ranks = std::move(ranks);
  one.tensors = {tensor};
  one.certain = certain;
  return one;
}

const Finding& verdict_of(const Findings& findings) {
  return findings.all().at(findings.verdict().value());
}

TEST(Findings, CertainThenStepThenStageThenEquation) {
  Findings findings;
  EXPECT_FALSE(findings.verdict());
  findings.add(finding(1, Check::zero, Stage::grad_reduced, {0}, 0, false));
  EXPECT_FALSE(findings.verdict());
  findings.add(finding(9, Check::exp_avg, Stage::moments, {0}, 0));
  EXPECT_EQ(verdict_of(findings).check, Check::exp_avg);
  findings.add(finding(7, Check::update, Stage::update, {0}, 0));
  EXPECT_EQ(verdict_of(findings).step, 7);
  findings.add(finding(7, Check::replicas, Stage::grad_reduced, {0, 1}, 0));
  EXPECT_EQ(verdict_of(findings).check, Check::replicas);
  findings.add(finding(7, Check::reduce, Stage::grad_reduced, {1}, 0));
  EXPECT_EQ(verdict_of(findings).check, Check::reduce);
  findings.add(finding(7, Check::gap, Stage::weights, {1}, 0));
  EXPECT_EQ(verdict_of(findings).check, Check::gap);
}

TEST(Findings, OfOnePlaceTheyAreOneWithTheWorstTensor) {
  Findings findings;
  for (const std::uint32_t tensor : {5u, 1u, 3u, 1u}) {
    Finding one = finding(2, Check::reduce, Stage::grad_reduced, {0}, tensor);
    one.value = tensor == 3 ? 9.0 : 2.0;
    one.bound = 1.0;
    one.text = "tensor " + std::to_string(tensor);
    findings.add(std::move(one));
  }
  findings.add(finding(2, Check::reduce, Stage::grad_reduced, {1}, 1));
  ASSERT_EQ(findings.all().size(), 2u);
  EXPECT_EQ(findings.all()[0].tensors, (std::vector<std::uint32_t>{1, 3, 5}));
  EXPECT_EQ(findings.all()[0].value, 9.0);
  EXPECT_EQ(findings.all()[0].text, "tensor 3");
}

TEST(Findings, BeyondTheMostOnlyTheirNumberGoesOn) {
  Findings findings;
  const auto most = static_cast<std::int64_t>(Findings::kMost);
  for (std::int64_t step = 0; step < most + 7; ++step) {
    findings.add(finding(step, Check::gap, Stage::weights, {0}, 0));
  }
  EXPECT_EQ(std::ssize(findings.all()), most);
  EXPECT_EQ(findings.left_out(), 7);
  EXPECT_EQ(verdict_of(findings).step, 0);
}

}  // namespace
}  // namespace trainmon::detect
