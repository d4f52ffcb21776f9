// What a diagnosis says of checks that it did not make.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "answers/diagnose.h"
#include "written_run.h"

namespace trainmon {
namespace {

// Why a check was not made of two ranks with these two kinds of gradients.
std::map<std::string, std::string> reasons(Replication of_unreduced, Replication of_reduced) {
  const Scratch scratch;
  for (const int number : {0, 1}) {
    WrittenRank rank(scratch.path(), number, 0);
    Series unreduced, reduced;
    unreduced.kind = "grad_unreduced";
    reduced.kind = "grad_reduced";
    unreduced.replication = of_unreduced;
    reduced.replication = of_reduced;
    for (Series* const one : {&unreduced, &reduced}) {
      one->name = "w";
      const SeriesId id = rank.add(*one);
      for (int step = 0; step < 3; ++step) rank.row(id, step, WrittenRank::one(number + 1.0));
    }
    for (int step = 0; step < 3; ++step) rank.outcome(step, step);
    rank.write();
  }
  std::map<std::string, std::string> all;
  for (const auto& one : diagnose(scratch.path()).not_checked) all[one.check] = one.why;
  return all;
}

TEST(Unchecked, RanksOfWhichNothingSaysHowTheyGoTogether) {
  auto why = reasons(Replication::independent, Replication::independent);
  EXPECT_NE(why["replicas"].find("no wrapper"), std::string::npos) << why["replicas"];
  EXPECT_EQ(why["reduce"], why["replicas"]);
  why = reasons(Replication::partial, Replication::independent);
  EXPECT_EQ(why["replicas"], "no tensor that several ranks hold alike");
  EXPECT_NE(why["reduce"].find("no tensor of which"), std::string::npos) << why["reduce"];
}

}  // namespace
}  // namespace trainmon
