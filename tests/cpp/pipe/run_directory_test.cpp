// Claiming a directory: never shared, numbered by restart, other models refused.
#include "pipe/run_directory.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/process.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

struct Scratch {
  fs::path path;
  Scratch() {
    std::string name = (fs::temp_directory_path() / "trainmon-run-XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~Scratch() { fs::remove_all(path); }
};

RunInfo claim(const fs::path& out, const Identity& identity) {
  RunInfo run = claim_directory(out, identity, kDefaultEps);
  std::ofstream(run.directory / "run.json")
      << run_json(run, identity, "{}", utc_now(), RunDescription{});
  return run;
}

TEST(RunDirectory, ManyClaimsInOneSecondNeverShare) {
  const Scratch scratch;
  std::vector<fs::path> claimed(64);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 64; ++i) {
    threads.emplace_back([&, i] {
      Identity identity;
      identity.rank = static_cast<int>(i % 8);  // eight of each rank, as when nobody sets RANK
      claimed[i] = claim_directory(scratch.path, identity, kDefaultEps).directory;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(std::set<fs::path>(claimed.begin(), claimed.end()).size(), 64u);
}

TEST(RunDirectory, StartingAgainIsTheNextRestart) {
  const Scratch scratch;
  Identity identity;
  EXPECT_EQ(claim(scratch.path, identity).restart, 0);
  EXPECT_EQ(claim(scratch.path, identity).restart, 1);
}

// torchrun alone gives no run id: then the number of processes tells launches apart.
TEST(RunDirectory, RanksThatComeInWithMoreProcessesTakeTheNumberOfTheOthers) {
  const Scratch scratch;
  const auto launch = [&](int world_size, bool first_rank_first) {
    std::set<int> restarts;
    for (int i = 0; i < world_size; ++i) {
      Identity identity;
      identity.world_size = world_size;
      identity.rank = first_rank_first ? i : world_size - 1 - i;
      restarts.insert(claim(scratch.path, identity).restart);
    }
    return restarts;
  };
  int restart = 0;
  for (const bool first_rank_first : {true, false}) {
    for (const int world_size : {1, 2, 2, 1, 3, 2, 4, 4}) {
      EXPECT_EQ(launch(world_size, first_rank_first), std::set<int>{restart++});
    }
  }
}

// A rank that joins only in the second launch takes the number the others have.
TEST(RunDirectory, RanksOfOneLaunchAgree) {
  const Scratch scratch;
  Identity zero;
  zero.run_id = "job";
  EXPECT_EQ(claim(scratch.path, zero).restart, 0);
  zero.restart_count = 1;
  EXPECT_EQ(claim(scratch.path, zero).restart, 1);
  Identity late = zero;
  late.rank = 5;
  EXPECT_EQ(claim(scratch.path, late).restart, 1);
}

TEST(RunDirectory, AnotherModelIsRefused) {
  const Scratch scratch;
  Identity identity;
  identity.model_digest = "aaaa";
  claim(scratch.path, identity);
  identity.model_digest = "bbbb";
  EXPECT_THROW(claim(scratch.path, identity), std::runtime_error);
}

TEST(RunDirectory, StagesOfAPipelineAreDifferentModels) {
  const Scratch scratch;
  for (int restart = 0; restart < 2; ++restart) {
    for (int rank = 0; rank < 2; ++rank) {
      Identity identity;
      identity.rank = rank;
      identity.model_digest = rank == 0 ? "first stage" : "second stage";
      EXPECT_EQ(claim(scratch.path, identity).restart, restart);
    }
  }
}

TEST(RunDirectory, ARunIdIsNeverAPath) {
  EXPECT_EQ(default_out("", "../../etc"), fs::path("trainmon_runs/.._.._etc"));
  EXPECT_EQ(default_out("", ".."), fs::path("trainmon_runs/local"));
  EXPECT_EQ(default_out("", std::string(300, 'a')), "trainmon_runs/" + std::string(200, 'a'));
  EXPECT_EQ(default_out("", ""), fs::path("trainmon_runs/local"));
  EXPECT_EQ(default_out("x/y", "id"), fs::path("x/y"));
}

TEST(RunDirectory, HealthIsPlainJson) {
  Health health;
  health.rows_produced = 5;
  health.sinks.push_back({"log", 3, {{"no_space", 2}}, true});
  const auto value = nlohmann::json::parse(health_json(health, true));
  EXPECT_EQ(value["sinks"][0]["rows_dropped"]["no_space"], 2);
  EXPECT_EQ(value["rows_produced"], 5);
  EXPECT_TRUE(value["closed"]);
}

}  // namespace
}  // namespace trainmon
