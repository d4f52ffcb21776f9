// Whatever happens to the bytes: no crash, no wrong record, no silent loss.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <optional>

#include "base/crc32c.h"
#include "base/file.h"
#include "read/log.h"
#include "read/log_index.h"
#include "read/log_tail.h"
#include "records.h"
#include "scratch.h"
#include "sinks/log_format.h"
#include "sinks/sinks.h"
#include "trainmon/read.h"
#include "written_run.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

// A log of one segment with few small batches, and where each write ended.
struct SmallLog {
  Scratch scratch;
  std::vector<RecordBatch> batches;
  std::map<std::uint64_t, std::optional<Shape>> shapes;  // of rows, by seq
  std::vector<std::size_t> ends;  // ends[i]: file size once i batches were written
  std::string bytes;

  explicit SmallLog(std::uint64_t seed, std::size_t count = 4, std::size_t most_rows = 3) {
    RandomRecords random(seed);
    ListedSeries series;
    for (int i = 0; i < 4; ++i) series.add(random.series());
    for (const Shape& shape : {Shape{}, Shape{0, 3}, Shape{300}}) series.add(shape);
    const fs::path written = scratch.path() / "written";
    make_directories(written);
    RunInfo run;
    run.directory = written;
    const std::unique_ptr<Sink> log = make_log_sink(1 << 20);
    log->open(run, series);
    const fs::path file = written / "log-000000.tmlog";
    ends.push_back(fs::file_size(file));
    for (std::uint64_t i = 0; i < count; ++i) {
      batches.push_back(random.batch(i, series.size(), most_rows));
      for (Row& row : batches.back().rows) {
        row.shape = static_cast<ShapeId>(random.below(5));
        shapes[row.key.seq] = shape_written(series, row);
      }
      log->write(batches.back());
      ends.push_back(fs::file_size(file));
    }
    log->close();
    bytes = read_file(file);
  }

  LogContents read(const std::string& content) const {
    std::ofstream(scratch.path() / "log-000000.tmlog", std::ios::binary) << content;
    return read_log(scratch.path(), 0, 0);
  }

  // Every batch that is read must be one of the originals, each at most once, in order. Where the
  // definition of a series is lost, the records of that series are missing from it, and only they.
  void expect_subset(const LogContents& contents) const {
    std::uint64_t next = 0;
    for (const RecordBatch& batch : contents.batches) {
      ASSERT_GE(batch.number, next);
      ASSERT_LT(batch.number, batches.size());
      next = batch.number + 1;
      RecordBatch expected = batches[batch.number];
      const auto is_undefined = [&](const auto& record) {
        return !contents.series.contains(record.key.series);
      };
      const std::size_t lost = std::erase_if(expected.rows, is_undefined) +
                               std::erase_if(expected.payloads, is_undefined) +
                               std::erase_if(expected.alerts, is_undefined);
      ASSERT_TRUE(same(batch, expected)) << "batch " << batch.number;
      for (const Row& row : batch.rows) {
        ASSERT_EQ(shape_read(contents, batch, row), shapes.at(row.key.seq));
      }
      if (lost > 0) {
        ASSERT_FALSE(contents.damage.empty());
      }
    }
  }
};

TEST(Damage, EveryTruncationPointGivesAPrefix) {
  const SmallLog log(1);
  for (std::size_t length = 0; length <= log.bytes.size(); ++length) {
    const LogContents contents = log.read(log.bytes.substr(0, length));
    log.expect_subset(contents);
    std::size_t whole = 0;
    while (whole < log.batches.size() && log.ends[whole + 1] <= length) ++whole;
    ASSERT_EQ(contents.batches.size(), whole) << "cut to " << length;
    ASSERT_TRUE(contents.damage.empty()) << contents.damage.front().what;
    const bool at_write = std::find(log.ends.begin(), log.ends.end(), length) != log.ends.end();
    if (at_write) {
      ASSERT_EQ(contents.torn_tails, 0);
    }
  }
}

// Under sanitizers one in three, which are bits of every place in a byte: all of them take a
// minute.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kBits = 3;
#else
constexpr std::size_t kBits = 1;
#endif

TEST(Damage, EverySingleBitFlipIsHarmlessAndNoticed) {
  const SmallLog log(2, 3, 2);
  for (std::size_t bit = 0; bit < log.bytes.size() * 8; bit += kBits) {
    std::string flipped = log.bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    const LogContents contents = log.read(flipped);
    log.expect_subset(contents);
    const bool is_minor_version = bit / 8 == 14 || bit / 8 == 15;
    if (!is_minor_version) {
      ASSERT_FALSE(contents.damage.empty()) << "bit " << bit;
    }
    // One flip costs one frame at most, or all that one frame defines.
    if (bit / 8 >= log.ends[1]) {
      ASSERT_GE(contents.batches.size(), 2u) << "bit " << bit;
    }
  }
}

TEST(Damage, EveryByteRemovedOrInserted) {
  const SmallLog log(3, 3, 2);
  for (std::size_t at = 0; at < log.bytes.size(); ++at) {
    for (const bool is_removal : {true, false}) {
      std::string changed = log.bytes;
      if (is_removal) {
        changed.erase(at, 1);
      } else {
        changed.insert(at, 1, 'x');
      }
      const LogContents contents = log.read(changed);
      log.expect_subset(contents);
      if (contents.batches.size() < log.batches.size()) {
        ASSERT_FALSE(contents.damage.empty() && contents.torn_tails == 0) << at;
      }
    }
  }
}

TEST(Damage, FramesRepeatedReorderedOrTakenOut) {
  const SmallLog log(4);
  const auto part = [&](std::size_t i) {
    return log.bytes.substr(log.ends[i], log.ends[i + 1] - log.ends[i]);
  };
  const std::string head = log.bytes.substr(0, log.ends[0]);
  const auto expect_all = [&](const std::string& content) {
    const LogContents contents = log.read(content);
    EXPECT_TRUE(same(contents.batches, log.batches));
    EXPECT_FALSE(contents.damage.empty());
    std::int64_t rows = 0;
    for (const RecordBatch& batch : contents.batches) rows += batch.row_count();
    EXPECT_EQ(contents.rows, rows);
  };
  expect_all(head + part(1) + part(2) + part(3) + part(0));            // definitions come last
  expect_all(head + part(0) + part(1) + part(1) + part(2) + part(3));  // repeated
  expect_all(head + part(0) + part(2) + part(1) + part(3));            // reordered
  expect_all(head + part(0) + part(1) + "rubbish" + part(2) + part(3));
  expect_all(head + part(0) + part(1) + std::string(100, '\0') + part(2) + part(3));
  const LogContents without = log.read(head + part(0) + part(2) + part(3));
  EXPECT_EQ(without.batches.size(), 3u);
  // What the missing frame alone defined is missed by others, too.
  const auto says_missing = [](const Damage& damage) {
    return damage.what.find("missing") != std::string::npos;
  };
  EXPECT_EQ(std::count_if(without.damage.begin(), without.damage.end(), says_missing), 1);
}

TEST(Damage, ABatchThatIsInTwoSegmentsCountsOnce) {
  const Scratch scratch;
  RandomRecords random(6);
  ListedSeries series;
  for (int i = 0; i < 4; ++i) series.add(random.series());
  RunInfo run;
  run.directory = scratch.path();
  const fs::path first = scratch.path() / "log-000000.tmlog";
  const fs::path second = scratch.path() / "log-000001.tmlog";
  const std::unique_ptr<Sink> log = make_log_sink(1 << 13);
  log->open(run, series);
  std::vector<std::size_t> ends = {fs::file_size(first)};
  std::size_t rows = 0, scalars = 0, declared = 0, alerts = 0, gaps = 0;
  for (std::uint64_t i = 0; i < 1000 && !fs::exists(second); ++i) {
    const RecordBatch batch = random.batch(i, series.size(), 3);
    log->write(batch);
    if (fs::file_size(first) > ends.back()) ends.push_back(fs::file_size(first));
    rows += static_cast<std::size_t>(batch.row_count());
    scalars += batch.scalars.size();
    declared += batch.declared.size();
    alerts += batch.alerts.size();
    gaps += batch.gaps.size();
  }
  log->close();
  ASSERT_GT(ends.size(), 8u);  // frames of the second one have lower numbers than the last here
  ASSERT_GT(scalars, 0u);
  const std::string last = read_file(first).substr(ends[ends.size() - 2]);
  std::ofstream(second, std::ios::binary | std::ios::app) << last;

  Allowance allowance;
  const LogIndex index(scratch.path(), 0, 0, allowance);
  const LogContents& contents = index.contents();
  const auto is_said = [](const Damage& one) {
    return one.what.find("is also in log-000001.tmlog and not used twice") != std::string::npos;
  };
  EXPECT_EQ(std::ranges::count_if(contents.damage, is_said), 1);
  EXPECT_EQ(static_cast<std::size_t>(contents.rows), rows);
  ASSERT_EQ(contents.batches.size(), 1u);
  EXPECT_EQ(contents.batches.front().scalars.size(), scalars);
  EXPECT_EQ(contents.batches.front().declared.size(), declared);
  EXPECT_EQ(contents.batches.front().alerts.size(), alerts);
  EXPECT_EQ(contents.batches.front().gaps.size(), gaps);
}

TEST(Damage, ZerosAtTheEndAreATornTail) {
  const SmallLog log(5);
  const LogContents contents = log.read(log.bytes + std::string(5000, '\0'));
  EXPECT_TRUE(same(contents.batches, log.batches));
  EXPECT_TRUE(contents.damage.empty());
  EXPECT_EQ(contents.torn_tails, 1);
}

TEST(Damage, ForeignFiles) {
  const SmallLog log(6);
  RandomRecords random(6);
  const std::vector<std::string> foreign = {"hello", std::string(100000, 'x'), random.bytes(5000),
                                            "TMLOG\r\n\x1a", "TMLOG\n\x1a" + std::string(200, 'y')};
  for (const std::string& content : foreign) {
    const LogContents contents = log.read(content);
    EXPECT_TRUE(contents.batches.empty());
    EXPECT_TRUE(!contents.damage.empty() || contents.torn_tails == 1);
  }
  fs::create_directory(log.scratch.path() / "log-000007.tmlog");
  write_atomically(log.scratch.path() / "log-0000x1.tmlog", "not a segment's name");
  const LogContents contents = log.read(log.bytes);
  EXPECT_TRUE(same(contents.batches, log.batches));
  EXPECT_EQ(contents.damage.size(), 1u);
}

TEST(Damage, AnotherFormatVersionIsNamed) {
  const SmallLog log(7);
  std::string newer = log.bytes;
  newer[12] = 2;
  const LogContents contents = log.read(newer);
  ASSERT_FALSE(contents.damage.empty());
  EXPECT_EQ(contents.damage.front().what, "format version 2, this reader knows 1");
}

TEST(Damage, ACodecThisBuildLacksIsNamed) {
  const SmallLog log(12);
  std::string changed = log.bytes;
  const std::size_t last_frame = changed.rfind("tmFR");
  changed[last_frame + 5] = 9;
  std::string crc;
  log_format::ByteWriter(crc).fixed(crc32c(std::string_view(changed).substr(last_frame, 24)));
  changed.replace(last_frame + 24, 4, crc);
  const LogContents contents = log.read(changed);
  log.expect_subset(contents);
  EXPECT_EQ(contents.batches.size(), log.batches.size() - 1);
  ASSERT_EQ(contents.damage.size(), 1u);
  EXPECT_EQ(contents.damage.front().what,
            "compressed with codec 9, which this build of trainmon cannot read (1 is zstd)");
}

TEST(Damage, SegmentsOfOthersAreNotMixedIn) {
  const SmallLog log(8);
  write_atomically(log.scratch.path() / "log-000000.tmlog", log.bytes);
  // A copy under another number, and the log of another rank.
  write_atomically(log.scratch.path() / "log-000001.tmlog", log.bytes);
  const LogContents copied = read_log(log.scratch.path(), 0, 0);
  EXPECT_TRUE(same(copied.batches, log.batches));
  EXPECT_EQ(copied.damage.size(), 1u);
  const LogContents other_rank = read_log(log.scratch.path(), 1, 0);
  EXPECT_TRUE(other_rank.batches.empty());
  EXPECT_EQ(other_rank.damage.size(), 2u);
  // A follower says the same.
  fs::remove(log.scratch.path() / "log-000000.tmlog");
  LogTail tail(log.scratch.path(), 0, 0, 1);
  std::vector<Damage> damage;
  int given = 0;
  tail.look([&](RecordBatch&&) { ++given; }, damage);
  EXPECT_EQ(given, 0);
  ASSERT_EQ(damage.size(), 1u);
  EXPECT_EQ(damage.front().what,
            "this is segment 0 of rank 0, restart 0: it does not belong here and is not used");
}

TEST(Damage, MissingAndShortenedSegmentsAreSaid) {
  const Scratch scratch;
  RandomRecords random(9);
  ListedSeries series;
  for (int i = 0; i < 4; ++i) series.add(random.series());
  RunInfo run;
  run.directory = scratch.path();
  const std::unique_ptr<Sink> log = make_log_sink(1);
  log->open(run, series);
  for (std::uint64_t i = 0; i < 5; ++i) log->write(random.batch(i, 4));
  log->close();
  const fs::path second = scratch.path() / "log-000001.tmlog";
  const std::string content = read_file(second);
  // Cut exactly between two frames: only the next segment knows.
  const std::size_t last_frame = content.rfind("tmFR");
  write_atomically(second, content.substr(0, last_frame));
  LogContents contents = read_log(scratch.path(), 0, 0);
  EXPECT_EQ(contents.batches.size(), 4u);
  ASSERT_EQ(contents.damage.size(), 1u);
  EXPECT_EQ(contents.damage.front().what,
            std::to_string(content.size() - last_frame) + " bytes are missing at the end");
  fs::remove(second);
  fs::remove(scratch.path() / "log-000002.tmlog");
  contents = read_log(scratch.path(), 0, 0);
  EXPECT_EQ(contents.batches.size(), 3u);
  ASSERT_EQ(contents.damage.size(), 1u);
  EXPECT_EQ(contents.damage.front().what, "segments 1 to 2 are missing");
}

// A run of one rank whose ten rows are in one segment, a batch each.
class ClosedRun : public testing::Test {
 protected:
  ClosedRun() : rank_(scratch_.path(), 0, 0) {
    const SeriesId w = rank_.add("grad_reduced", "w");
    for (std::int64_t window = 0; window < 10; ++window) {
      rank_.row(w, window);
      rank_.write();
    }
  }
  fs::path segment() const { return rank_.directory() / "log-000000.tmlog"; }
  std::vector<std::string> damage() const {
    std::vector<std::string> texts;
    for (const Damage& found : read_run(scratch_.path()).damage) {
      EXPECT_EQ(found.file, rank_.directory());
      texts.push_back(found.what);
    }
    return texts;
  }
  // The first half of the segment's frames, cut between two of them.
  void cut() const {
    const std::string content = read_file(segment());
    write_atomically(segment(), content.substr(0, content.find("tmFR", content.size() / 2)));
  }
  static std::vector<std::string> says(const std::string& rows) {
    return {"health.json says 10 rows were written, the log holds " + rows};
  }

  Scratch scratch_;
  WrittenRank rank_;
};

TEST_F(ClosedRun, ALostLogIsDamage) {
  rank_.write_health(10, 10, 0, true);
  EXPECT_TRUE(damage().empty());
  cut();
  const auto left = static_cast<std::int64_t>(read_run(scratch_.path()).rows.size());
  EXPECT_GT(left, 0);
  EXPECT_LT(left, 10);
  EXPECT_EQ(damage(), says(std::to_string(left)));
  write_atomically(segment(), "");
  EXPECT_EQ(damage(), says("0"));
  fs::remove(segment());
  EXPECT_EQ(damage(), says("0"));
  // Of rows that nobody asked for, too.
  ReadOptions options;
  options.kinds = {"cc"};
  EXPECT_EQ(read_run(scratch_.path(), options).damage.size(), 1u);
}

TEST_F(ClosedRun, ALivingOrKilledOneIsNotDamagedByItsEnd) {
  rank_.write_health(10, 10, 0, false);
  cut();
  EXPECT_TRUE(damage().empty());
  fs::remove(rank_.directory() / "health.json");
  EXPECT_TRUE(damage().empty());
}

TEST_F(ClosedRun, RowsTheLogSaysWereDeletedAreExplained) {
  rank_.batch().gaps.push_back({"deleted", 4, 0, 9});
  rank_.write();
  rank_.write_health(14, 14, 0, true);
  EXPECT_TRUE(damage().empty());
  rank_.write_health(15, 15, 0, true);
  EXPECT_EQ(damage(), std::vector<std::string>{"health.json says 15 rows were written, the log "
                                               "holds 10 and says that 4 were deleted"});
  // A write that ended after its monitor had given it up: more than was promised is no loss.
  rank_.write_health(13, 13, 0, true);
  EXPECT_TRUE(damage().empty());
}

TEST(Damage, AStormOfMutations) {
  const SmallLog log(10, 6, 5);
  RandomRecords random(11);
  for (int round = 0; round < 3000; ++round) {
    std::string content = log.bytes;
    for (std::uint64_t n = 1 + random.below(6); n > 0; --n) {
      const std::size_t at = random.below(content.size());
      const std::size_t length = random.below(80);
      switch (random.below(5)) {
        case 0:
          content[at] = static_cast<char>(random.below(256));
          break;
        case 1:
          content.erase(at, length);
          break;
        case 2:
          content.insert(at, random.bytes(length));
          break;
        case 3:
          content.insert(random.below(content.size()), content.substr(at, length * 8));
          break;
        default:
          for (std::size_t i = at; i < content.size() && i < at + length; ++i) content[i] = 0;
      }
    }
    const LogContents contents = log.read(content);
    log.expect_subset(contents);
    if (contents.batches.size() < log.batches.size()) {
      ASSERT_FALSE(contents.damage.empty() && contents.torn_tails == 0) << "round " << round;
    }
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace trainmon
