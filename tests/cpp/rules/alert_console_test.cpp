// Lines for a person: their wording, their number in a storm, and that the rest is counted.
#include "rules/alert_console.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/log.h"

namespace trainmon {
namespace {

using namespace std::chrono_literals;

std::vector<std::string>* lines = nullptr;

class Console : public ::testing::Test {
 protected:
  void SetUp() override {
    lines = &seen;
    before = set_log_hook([](std::string_view line) { lines->emplace_back(line); });
    alert.rule = "deviation";
    alert.message = "grad_reduced p: norm 16 is above";
    alert.step = 12;
  }
  void TearDown() override { set_log_hook(before); }

  std::vector<std::string> seen;
  LogHook before = nullptr;
  Alert alert;
  Series series;
  AlertConsole::Clock::time_point now = AlertConsole::Clock::now();
};

TEST_F(Console, SaysRankRuleMessageAndStep) {
  AlertConsole console(plain_alert_text(3));
  console.tell(alert, series, now);
  alert.count = 2;  // the message is of the newest
  console.tell(alert, series, now);
  alert.count = 2048;
  alert.step = -1;
  console.tell(alert, series, now);
  EXPECT_EQ(seen,
            (std::vector<std::string>{
                "rank 3: deviation: grad_reduced p: norm 16 is above, step 12",
                "rank 3: deviation: grad_reduced p: norm 16 is above, first at step 12 (2 times)",
                "rank 3: deviation: grad_reduced p: norm 16 is above (2,048 times)"}));
}

TEST_F(Console, AStormIsAFewLinesASecondAndANumber) {
  AlertConsole console([](const Alert&, const Series&) { return std::string("line"); }, 5);
  for (int i = 0; i < 1000; ++i) console.tell(alert, series, now + i * 1ms - 1us);
  EXPECT_EQ(seen.size(), 5u);
  console.catch_up(false, now + 999ms);
  EXPECT_EQ(seen.size(), 5u);
  console.tell(alert, series, now + 1001ms);
  ASSERT_EQ(seen.size(), 7u);
  EXPECT_EQ(seen[5], "... and 995 more alerts");
  EXPECT_EQ(seen[6], "line");
  for (int i = 0; i < 10; ++i) console.tell(alert, series, now + 1002ms);
  console.catch_up(true, now + 1003ms);
  EXPECT_EQ(seen.back(), "... and 6 more alerts");
  const std::size_t before_quiet = seen.size();
  console.catch_up(true, now + 1003ms);
  EXPECT_EQ(seen.size(), before_quiet);
}

TEST_F(Console, NamesCannotSendEscapeCodes) {
  AlertConsole console(plain_alert_text(0));
  alert.message = "p\x1b[31m\n";
  console.tell(alert, series, now);
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].find('\x1b'), std::string::npos);
  EXPECT_EQ(seen[0].find('\n'), std::string::npos);
}

TEST_F(Console, AWordingThatThrowsCostsItsLineOnly) {
  AlertConsole console([](const Alert&, const Series&) -> std::string { throw std::bad_alloc(); });
  console.tell(alert, series, now);
  EXPECT_TRUE(seen.empty());
}

}  // namespace
}  // namespace trainmon
