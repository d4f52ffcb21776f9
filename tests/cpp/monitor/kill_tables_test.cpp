// kill -9 at any instant: the files of csv and sqlite parse, hold a prefix without holes, and lose
// at most one flush interval. TRAINMON_KILLS sets the number of kills per sink (40 unless set).
#include <gtest/gtest.h>

#include <set>

#include "kill_child.h"
#include "scratch.h"
#include "tables.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

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
  const std::string sink = GetParam();
  const Scratch scratch;
  // Making a database takes some twenty writes.
  const TornWrite torn =
      sink == "csv" ? TornWrite{"file.write", 10, 60} : TornWrite{"sqlite.write", 30, 200};
  kill_often(scratch.path(), sink, torn, [this](const fs::path& run) -> std::uint64_t {
    const fs::path directory = run / "rank_00000" / "restart_0000";
    if (!fs::exists(directory)) return 0;
    std::set<std::uint64_t> seqs;
    for (const TextRow& row : rows(directory)) {
      EXPECT_TRUE(seqs.insert(std::stoull(row.at("seq"))).second) << "twice";
      const double number = std::stod(row.at("call"));
      EXPECT_EQ(std::stod(row.at("count")), 3);
      EXPECT_EQ(std::stod(row.at("min")), number);
      EXPECT_EQ(std::stod(row.at("max")), number);
      EXPECT_EQ(std::stod(row.at("mean")), number);
    }
    EXPECT_TRUE(seqs.empty() || *seqs.rbegin() == seqs.size()) << "a hole";
    return seqs.size();
  });
}

}  // namespace
}  // namespace trainmon
