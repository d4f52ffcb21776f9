// kill -9 at any instant: the files of csv and sqlite parse, hold a prefix without holes, and lose
// at most one flush interval. TRAINMON_KILLS sets the number of kills per sink (40 unless set).
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "kill_child.h"
#include "scratch.h"
#include "tables.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

constexpr double kFlushSeconds = 0.05;

class KillTables : public testing::TestWithParam<const char*> {
 protected:
  std::vector<TextRow> rows(const fs::path& directory) const {
    if (GetParam() == std::string("csv")) return csv_rows(directory, "rows-");
    const fs::path path = directory / "stats.db";
    // Killed before there was anything in it.
    if (!fs::exists(path) || sqlite_rows(path, "PRAGMA user_version")[0]["user_version"] == "0") {
      return {};
    }
    EXPECT_EQ(sqlite_rows(path, "PRAGMA integrity_check")[0]["integrity_check"], "ok");
    return sqlite_rows(path, "SELECT * FROM stats");
  }
};

INSTANTIATE_TEST_SUITE_P(Sinks, KillTables, testing::Values("csv", "sqlite"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(KillTables, TheFilesAreAPrefixWithoutHoles) {
  const char* wanted = std::getenv("TRAINMON_KILLS");
  const int kills = wanted != nullptr ? std::atoi(wanted) : 40;
  const std::string sink = GetParam();
  const unsigned seed = std::random_device{}();
  std::printf("%d kills, seed %u\n", kills, seed);
  std::mt19937 random(seed);
  const Scratch scratch;
  int with_rows = 0, with_bound = 0;
  for (int i = 0; i < kills; ++i) {
    const fs::path run = scratch.path() / std::to_string(i);
    const auto life = std::chrono::microseconds(15000 + random() % 200000);
    // Every third child dies between two parts of one write.
    std::string torn;
    if (i % 3 == 2) {
      const std::string site = sink == "csv" ? "file.write" : "sqlite.write";
      // Making a database takes some twenty writes.
      const int hit = sink == "csv" ? 10 + static_cast<int>(random() % 60)
                                    : 30 + static_cast<int>(random() % 200);
      torn = site + "=short:" + std::to_string(1 + random() % 400) + "@" + std::to_string(hit) +
             ";" + site + "=kill@" + std::to_string(hit + 1);
    }
    const Kill killed =
        start_and_kill(run, life, torn.empty() ? nullptr : torn.c_str(), kFlushSeconds, sink);
    const fs::path directory = run / "rank_00000" / "restart_0000";
    std::set<std::uint64_t> seqs;
    if (fs::exists(directory)) {
      for (const TextRow& row : rows(directory)) {
        EXPECT_TRUE(seqs.insert(std::stoull(row.at("seq"))).second) << "twice";
        const double number = std::stod(row.at("call"));
        ASSERT_EQ(std::stod(row.at("count")), 3);
        ASSERT_EQ(std::stod(row.at("min")), number);
        ASSERT_EQ(std::stod(row.at("max")), number);
        ASSERT_EQ(std::stod(row.at("mean")), number);
      }
    }
    if (!seqs.empty()) {
      ++with_rows;
      EXPECT_EQ(*seqs.rbegin(), seqs.size()) << "a hole";
    }
    // A child that a failpoint killed died before the parent's kill: no bound to check.
    // One flush interval, and one for a flush that is under way.
    std::uint64_t due = 0;
    const auto interval = static_cast<std::int64_t>(kFlushSeconds * 1e9);
    for (const KillReport& report : killed.reports) {
      if (torn.empty() && report.time_ns <= killed.time_ns - 2 * interval) due = report.sealed;
    }
    if (due > 0) ++with_bound;
    EXPECT_GE(seqs.size(), due) << "sealed before the last flush, yet lost";
    fs::remove_all(run);
  }
  std::printf("%d of %d kills with rows, %d with a bound\n", with_rows, kills, with_bound);
  EXPECT_GE(with_rows * 3, kills);
  EXPECT_GT(with_bound, kills / 5);
}

}  // namespace
}  // namespace trainmon
