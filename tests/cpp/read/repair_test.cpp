// A repaired run gives what readers took of the damaged one, without a complaint, whatever the
// damage was; and the damaged one stays as it is.
#include "read/repair.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/failpoint.h"
#include "base/file.h"
#include "base/process.h"
#include "read/account.h"
#include "read/log.h"
#include "records.h"
#include "scratch.h"
#include "sinks/log_format.h"
#include "sinks/log_retention.h"
#include "written_run.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

std::map<std::string, std::string> files_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files[entry.path().string()] = read_file(entry.path());
  }
  return files;
}

// A rank with batches of all records in many segments, closed in order.
fs::path write_records(const fs::path& run, std::uint64_t seed, std::size_t count, int rank = 0) {
  RandomRecords random(seed);
  WrittenRank written(run, rank, 0, "\"start_steps\": [0]", 20000);
  std::vector<SeriesId> series;
  for (int i = 0; i < 5; ++i) series.push_back(written.add(random.series()));
  const ShapeId shape = written.add(Shape{0, 3});
  int rows = 0;
  for (std::size_t i = 0; i < count; ++i) {
    written.batch() = random.batch(i, series.size(), 6);
    written.batch().gaps.clear();  // which are losses of the run itself
    for (Row& row : written.batch().rows) row.shape = shape;
    rows += static_cast<int>(written.batch().row_count());
    written.write();
  }
  written.write_health(rows, rows, 0, true);
  // What a writer adds, and no word of a sink that failed.
  nlohmann::json health = nlohmann::json::parse(read_file(written.directory() / "health.json"));
  health["errors"] = 0;
  health["sinks"][0]["batches_written"] = count;
  write_atomically(written.directory() / "health.json", health.dump());
  return written.directory();
}

fs::path segment_in(const fs::path& directory, int number) {
  return directory / log_format::segment_name(number);
}

Repair repaired(const fs::path& run, const fs::path& to) {
  return repair(run, to, [](std::int64_t, std::int64_t) { return true; });
}

void expect_in_order(const fs::path& run) {
  const Account books = account(run);
  for (const Damage& one : books.damage) ADD_FAILURE() << one.file << ": " << one.what;
  for (const RankAccount& rank : books.ranks) {
    for (const std::string& fault : rank.faults) ADD_FAILURE() << fault;
    for (const std::string& what : rank.incomplete) ADD_FAILURE() << what;
    EXPECT_EQ(rank.torn_tails, 0);
  }
}

void expect_same_batches(const LogContents& a, const LogContents& b) {
  EXPECT_EQ(a.rows, b.rows);
  EXPECT_EQ(a.payloads, b.payloads);
  EXPECT_EQ(a.windows, b.windows);
  EXPECT_EQ(a.last_time_ns, b.last_time_ns);
  ASSERT_EQ(a.batches.size(), b.batches.size());
  for (std::size_t i = 0; i < a.batches.size(); ++i) {
    ASSERT_TRUE(same(a.batches[i], b.batches[i])) << "batch " << i;
    ASSERT_EQ(a.batches[i].shapes, b.batches[i].shapes);
  }
  for (const auto& [id, definition] : b.series) EXPECT_EQ(a.series.at(id), definition);
}

// Repairs the run and holds the copy against it.
RepairedRank expect_repaired(const fs::path& run) {
  const Scratch beside;
  const fs::path to = beside.path() / "copy";
  const auto files = files_of(run);
  const LogContents before = read_log(rank_path(run, 0, 0), 0, 0);
  const Repair done = repaired(run, to);
  EXPECT_EQ(files, files_of(run));
  const LogContents after = read_log(rank_path(to, 0, 0), 0, 0);
  EXPECT_TRUE(after.damage.empty());
  expect_same_batches(before, after);
  expect_in_order(to);
  const RepairedRank& rank = done.ranks.at(0);
  EXPECT_EQ(rank.rows, before.rows);
  EXPECT_EQ(rank.batches, before.batch_count);
  EXPECT_EQ(fs::exists(rank_path(to, 0, 0) / "repair.json"), rank.is_changed());
  // A copy of the copy finds nothing.
  const Repair again = repaired(to, beside.path() / "again");
  EXPECT_TRUE(again.ranks.at(0).damage.empty());
  expect_in_order(beside.path() / "again");
  return rank;
}

TEST(Repair, ASoundRunIsCopied) {
  const Scratch scratch;
  const fs::path directory = write_records(scratch.path(), 1, 200);
  ASSERT_GT(read_log(directory, 0, 0).files, 3);
  const RepairedRank rank = expect_repaired(scratch.path());
  EXPECT_TRUE(rank.damage.empty());
  EXPECT_EQ(rank.rows_lost, 0);
}

TEST(Repair, DamageAnywhereCostsWhatReadersLost) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const Scratch scratch;
    const fs::path directory = write_records(scratch.path(), seed + 10, 120);
    const LogContents whole = read_log(directory, 0, 0);
    RandomRecords random(seed);
    for (std::uint64_t hits = 1 + random.below(3); hits > 0; --hits) {
      const fs::path file = segment_in(
          directory, static_cast<int>(random.below(static_cast<std::uint64_t>(whole.files))));
      if (!fs::exists(file)) continue;
      std::string bytes = read_file(file);
      if (bytes.empty()) continue;
      const std::size_t at = random.below(bytes.size());
      switch (random.below(6)) {
        case 0:
          bytes[at] = static_cast<char>(bytes[at] ^ 4);
          break;
        case 1:
          bytes.resize(at);
          break;
        case 2:
          bytes.insert(at, random.bytes(300) + "x");
          break;
        case 3:
          bytes.replace(at, std::min<std::size_t>(500, bytes.size() - at), 500, '\0');
          break;
        case 4:
          fs::remove(file);
          continue;
        default:
          bytes += bytes.substr(at);
      }
      std::ofstream(file, std::ios::binary) << bytes;
    }
    const RepairedRank rank = expect_repaired(scratch.path());
    EXPECT_EQ(rank.rows_lost.value() + rank.rows, whole.rows) << seed;
    if (HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST(Repair, BooksThatCannotBeReadAreMadeAnew) {
  const std::vector<std::pair<const char*, std::string>> cases = {
      {"run.json", "{"},
      {"run.json", "[1]"},
      {"run.json", R"({"start_steps": "x", "run_id": "kept", "config": {"clock": 1.5, "eps": 1}})"},
      {"run.json", ""},
      {"health.json", "nothing"},
      {"health.json", R"({"sinks": [3], "rows_produced": "many"})"},
      {"health.json", ""},
  };
  for (const auto& [name, content] : cases) {
    const Scratch scratch;
    const fs::path directory = write_records(scratch.path(), 3, 20);
    std::ofstream(directory / name, std::ios::binary) << content;
    if (content.empty()) fs::remove(directory / name);
    const RepairedRank rank = expect_repaired(scratch.path());
    EXPECT_TRUE(!rank.damage.empty() || name == std::string("health.json")) << content;
    if (content.find("kept") == std::string::npos) continue;
    const Scratch beside;
    repaired(scratch.path(), beside.path() / "copy");
    const auto run =
        nlohmann::json::parse(read_file(rank_path(beside.path() / "copy", 0, 0) / "run.json"));
    const nlohmann::json expected = {{"run_id", "kept"}, {"config", {{"eps", 1}}}};
    EXPECT_EQ(run, expected);
  }
}

TEST(Repair, WhatRetentionDeletedIsNotLost) {
  const Scratch scratch;
  const fs::path directory = write_records(scratch.path(), 4, 200);
  const LogContents whole = read_log(directory, 0, 0);
  std::int64_t rows = 0, batches = 0;
  for (int number : {0, 1}) {
    const Scratch alone;
    make_directories(rank_path(alone.path(), 0, 0));
    fs::rename(segment_in(directory, number), segment_in(rank_path(alone.path(), 0, 0), number));
    const LogContents gone = read_log(rank_path(alone.path(), 0, 0), 0, 0);
    rows += gone.rows;
    batches += gone.batch_count;
  }
  std::ofstream(directory / kRetentionFile)
      << R"({"first_segment": 2, "rows": )" << rows << R"(, "batches": )" << batches << "}\n";
  ASSERT_TRUE(read_log(directory, 0, 0).damage.empty());
  const RepairedRank rank = expect_repaired(scratch.path());
  EXPECT_EQ(rank.rows_lost, 0);
  EXPECT_EQ(rank.rows, whole.rows - rows);
}

// As its run.json says of a process of this machine.
void say_process(const fs::path& directory, std::int64_t pid) {
  nlohmann::json run = nlohmann::json::parse(read_file(directory / "run.json"));
  run["host"] = host_name();
  run["pid"] = pid;
  run["pid_namespace"] = pid_namespace();
  run["started"] = utc_now();
  write_atomically(directory / "run.json", run.dump());
  fs::remove(directory / "health.json");
}

TEST(Repair, AKilledRunIsClosedAndALivingOneRefused) {
  const Scratch scratch;
  const fs::path directory = write_records(scratch.path(), 5, 50);
  const int last = static_cast<int>(read_log(directory, 0, 0).files) - 1;
  std::ofstream(segment_in(directory, last), std::ios::binary | std::ios::app) << "tmFR";
  say_process(directory, 999'999'999);
  const RepairedRank rank = expect_repaired(scratch.path());
  EXPECT_EQ(rank.was, WriterState::gone);
  EXPECT_EQ(rank.torn_tails, 1);
  EXPECT_EQ(rank.rows_lost, std::nullopt);
  say_process(directory, ::getpid());
  const Scratch beside;
  EXPECT_THROW(repaired(scratch.path(), beside.path() / "copy"), std::runtime_error);
  EXPECT_FALSE(fs::exists(beside.path() / "copy"));
}

// Its books are of an earlier moment: what they do not count may be lost all the same.
TEST(Repair, WhatDamageCostAKilledRunIsNotKnown) {
  const Scratch scratch;
  const fs::path directory = write_records(scratch.path(), 8, 200);
  say_process(directory, 999'999'999);
  const fs::path books = directory / "health.json";
  nlohmann::json health = {{"closed", false}, {"rows_produced", 25}, {"errors", 0}};
  health["sinks"] = {{{"name", "log"}, {"rows_written", 25}, {"batches_written", 1}}};
  write_atomically(books, health.dump());
  std::string bytes = read_file(segment_in(directory, 0));
  bytes.replace(bytes.size() / 2, 64, 64, '\0');
  std::ofstream(segment_in(directory, 0), std::ios::binary) << bytes;
  const RepairedRank rank = expect_repaired(scratch.path());
  EXPECT_EQ(rank.was, WriterState::gone);
  EXPECT_FALSE(rank.damage.empty());
  EXPECT_EQ(rank.rows_lost, std::nullopt);
}

#if defined(TRAINMON_FAILPOINTS)

TEST(Repair, AWriteThatFailsIsSaid) {
  const Scratch scratch, beside;
  write_records(scratch.path(), 6, 50);
  const auto files = files_of(scratch.path());
  set_failpoints("file.write=errno:28@2+");
  EXPECT_THROW(repaired(scratch.path(), beside.path() / "copy"), SinkError);
  set_failpoints("");
  EXPECT_EQ(files, files_of(scratch.path()));
}

#endif

TEST(Repair, ReadersSayThatARunWasRepaired) {
  const Scratch scratch, beside;
  const fs::path directory = write_records(scratch.path(), 7, 50);
  fs::resize_file(segment_in(directory, 0), 2000);
  const Repair done = repaired(scratch.path(), beside.path() / "copy");
  const std::int64_t lost = done.ranks.at(0).rows_lost.value();
  ASSERT_GT(lost, 0);
  const RunRows run = read_run(beside.path() / "copy");
  ASSERT_EQ(run.expired.size(), 1u);
  EXPECT_EQ(run.expired[0], "repaired by trainmon repair (rank 0): " + std::to_string(lost) +
                                " rows are lost, repair.json beside the log says more");
  EXPECT_TRUE(run.incomplete.empty());
}

}  // namespace
}  // namespace trainmon
