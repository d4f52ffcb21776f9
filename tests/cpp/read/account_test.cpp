// The books of a run: what adds up is quiet, what does not is named.
#include "read/account.h"

#include <gtest/gtest.h>

#include "written_run.h"

namespace trainmon {
namespace {

class AccountTest : public testing::Test {
 protected:
  AccountTest() : rank_(scratch_.path(), 4, 1, "\"not_covered\": {\"cc\": \"no collectives\"}") {
    const SeriesId w = rank_.add("grad_reduced", "w");
    for (std::int64_t window = 0; window < 10; ++window) rank_.row(w, window);
    rank_.write();
  }
  RankAccount only() const { return account(scratch_.path()).ranks.at(0); }

  Scratch scratch_;
  WrittenRank rank_;
};

TEST_F(AccountTest, ASoundRunIsQuiet) {
  rank_.write_health(12, 10, 2, true);
  const RankAccount found = only();
  EXPECT_EQ(found.rank, 4);
  EXPECT_EQ(found.restart, 1);
  EXPECT_TRUE(found.closed);
  EXPECT_EQ(found.log_rows, 10);
  EXPECT_EQ(found.log_files, 1);
  EXPECT_EQ(found.health.errors, 2);
  EXPECT_EQ(found.health.sinks.at(0).rows_dropped.at("no_space"), 2);
  EXPECT_EQ(found.not_covered.at("cc"), "no collectives");
  EXPECT_TRUE(found.faults.empty());
}

TEST_F(AccountTest, RowsThatWentNowhere) {
  rank_.write_health(15, 10, 2, true);
  EXPECT_EQ(only().faults,
            std::vector<std::string>{"sink log: 15 rows produced, but 12 written or dropped"});
}

TEST_F(AccountTest, RowsThatAreNotInTheLog) {
  rank_.write_health(11, 11, 0, true);
  EXPECT_EQ(only().faults,
            std::vector<std::string>{"the log gives 10 rows, health.json says 11 were written"});
}

TEST_F(AccountTest, ALivingRunMayBeAheadOfItsHealth) {
  rank_.write_health(20, 4, 0, false);
  EXPECT_TRUE(only().faults.empty());
}

// A full disk may have kept health.json from being written: that is not "in order".
TEST_F(AccountTest, WithoutHealthNothingCanBeToldOfLosses) {
  std::filesystem::remove(rank_.directory() / "health.json");
  EXPECT_FALSE(only().has_health);
  EXPECT_EQ(only().faults,
            std::vector<std::string>{"no health.json: whether rows were dropped cannot be told"});
}

TEST_F(AccountTest, RowsOfADeletedSegmentAreExplained) {
  std::filesystem::remove(rank_.directory() / "log-000000.tmlog");
  rank_.row(rank_.add("grad_reduced", "v"), 0);
  rank_.write();
  rank_.write_health(11, 11, 0, true);
  const Account found = account(scratch_.path());
  EXPECT_TRUE(found.ranks.at(0).faults.empty());
  EXPECT_EQ(found.damage.size(), 1u);  // the missing segment is still said
  EXPECT_EQ(found.rows(), 1);
}

}  // namespace
}  // namespace trainmon
