// Rules act on the hit they name; without failpoints a site is nothing at all.
#include "base/failpoint.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace trainmon {
namespace {

#if defined(TRAINMON_FAILPOINTS)

TEST(Failpoint, ActsOnTheNamedHit) {
  set_failpoints("a=errno:28@2;b=short:3@2+;c=throw");
  EXPECT_EQ(failpoint("a").error, 0);
  EXPECT_EQ(failpoint("a").error, 28);
  EXPECT_EQ(failpoint("a").error, 0);
  EXPECT_GT(failpoint("b").limit, 3u);
  EXPECT_EQ(failpoint("b").limit, 3u);
  EXPECT_EQ(failpoint("b").limit, 3u);
  EXPECT_THROW(failpoint("c"), std::runtime_error);
  EXPECT_EQ(failpoint_hits("a"), 3);
  set_failpoints("");
  EXPECT_EQ(failpoint("a").error, 0);
}

TEST(Failpoint, Kills) {
  EXPECT_EXIT((set_failpoints("a=kill"), failpoint("a")), testing::KilledBySignal(9), "");
  EXPECT_EXIT((set_failpoints("a=abort"), failpoint("a")), testing::KilledBySignal(6), "");
}

TEST(Failpoint, BadRulesAreNamed) {
  for (const char* spec :
       {"a", "a=b", "a=errno", "a=errno:x", "a=abort:1", "a=throw@k", "a=errno:-1"}) {
    EXPECT_THROW(set_failpoints(spec), std::invalid_argument) << spec;
  }
  set_failpoints("");
}

#else

static_assert(failpoint("a").error == 0, "a site is a constant in builds without failpoints");
TEST(Failpoint, IsNothingWithoutFailpoints) {
  EXPECT_EQ(failpoint("file.write").error, 0);
}

#endif

}  // namespace
}  // namespace trainmon
