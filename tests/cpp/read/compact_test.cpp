// A compacted log gives the very records of the log as it was written, to whoever reads it, also
// while it is compacted; and what is not sound stays as it is.
#include "read/compact.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <map>
#include <thread>

#include "base/failpoint.h"
#include "base/file.h"
#include "read/log.h"
#include "read/log_group.h"
#include "read/log_index.h"
#include "read/log_scan.h"
#include "read/log_tail.h"
#include "records.h"
#include "scratch.h"
#include "sinks/log_group.h"
#include "written_run.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

// A rank with batches of all records, in segments of about `segment` bytes; closed in order.
fs::path write_rank(const fs::path& run, std::uint64_t seed, std::size_t count, int rank = 0,
                    std::size_t segment = 20000) {
  RandomRecords random(seed);
  WrittenRank written(run, rank, 0, "\"start_steps\": [0]", segment);
  std::vector<SeriesId> series;
  for (int i = 0; i < 5; ++i) series.push_back(written.add(random.series()));
  std::vector<ShapeId> shapes = {kUnknownShape, kFullShape};
  for (const Shape& shape : {Shape{}, Shape{0, 3}, Shape{300}})
    shapes.push_back(written.add(shape));
  for (std::size_t i = 0; i < count; ++i) {
    written.batch() = random.batch(i, series.size(), 6);
    for (Row& row : written.batch().rows) row.shape = shapes[random.below(shapes.size())];
    written.write();
  }
  written.write_health(1, 1, 0, true);
  return written.directory();
}

Compaction compacted(const fs::path& run) {
  return compact(run, [](std::int64_t, std::int64_t) { return true; });
}

fs::path segment_of(const fs::path& directory, int number = 0) {
  return directory / log_format::segment_name(number);
}

// Rows, and everything else: `same` is that of records.h.
void expect_same(const LogContents& a, const LogContents& b) {
  EXPECT_EQ(a.series, b.series);
  EXPECT_EQ(a.windows, b.windows);
  EXPECT_EQ(a.rows, b.rows);
  EXPECT_EQ(a.payloads, b.payloads);
  EXPECT_EQ(a.batch_count, b.batch_count);
  EXPECT_EQ(a.last_time_ns, b.last_time_ns);
  EXPECT_EQ(a.damage.size(), b.damage.size());
  ASSERT_EQ(a.batches.size(), b.batches.size());
  for (std::size_t i = 0; i < a.batches.size(); ++i) {
    ASSERT_TRUE(same(a.batches[i], b.batches[i])) << "batch " << i;
    ASSERT_EQ(a.batches[i].shapes, b.batches[i].shapes);
    for (std::size_t row = 0; row < a.batches[i].rows.size(); ++row) {
      ASSERT_EQ(a.batches[i].rows[row].shape, b.batches[i].rows[row].shape);
    }
  }
}

TEST(Compact, EveryRecordOfEverySegmentStays) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const Scratch scratch;
    for (const int rank : {0, 1}) write_rank(scratch.path(), seed + 100, 300, rank);
    const fs::path directory = rank_path(scratch.path(), 1, 0);
    const LogContents before = read_log(directory, 1, 0);
    ASSERT_GT(before.files, 3);
    ASSERT_TRUE(before.damage.empty());
    const Compaction done = compacted(scratch.path());
    ASSERT_EQ(done.ranks.size(), 2u);
    EXPECT_TRUE(done.ranks[1].left.empty());
    EXPECT_EQ(done.ranks[1].segments, before.files);
    EXPECT_GT(done.ranks[1].frames_before, before.files * 2 + before.batch_count);
    EXPECT_EQ(done.ranks[1].frames_after, before.files * 3);
    expect_same(before, read_log(directory, 1, 0));
    expect_same(check_log(directory, 1, 0), check_log(directory, 1, 0));
    EXPECT_EQ(check_log(directory, 1, 0).rows, before.rows);
    const Compaction again = compacted(scratch.path());
    EXPECT_EQ(again.ranks[1].segments, 0);
    EXPECT_EQ(again.ranks[1].already, before.files);
  }
}

TEST(Compact, GroupsKeepToTheBoundsOfReaders) {
  const Scratch scratch;
  WrittenRank written(scratch.path(), 0, 0);
  const SeriesId series = written.add("grad_reduced", "w");
  constexpr int kRows = 70000;  // all alike: they pack below a byte a row
  for (int i = 0; i < kRows; ++i) {
    written.row(series, i / 100);
    if (i % 100 == 99) written.write();
  }
  written.write_health(kRows, kRows, 0, true);
  const LogContents before = read_log(written.directory(), 0, 0);
  EXPECT_EQ(compacted(scratch.path()).ranks.at(0).segments, 1);
  const std::string bytes = read_file(segment_of(written.directory()));
  std::uint64_t groups = 0;
  for (const LogFrame& frame : scan_segment(bytes).frames) {
    if (frame.header.type != static_cast<std::uint8_t>(log_format::FrameType::group)) continue;
    ++groups;
    EXPECT_LE(frame.header.raw, log_format::kMaxRatio * frame.header.stored);
  }
  EXPECT_EQ(groups, 2u);
  expect_same(before, read_log(written.directory(), 0, 0));
}

TEST(Compact, LargePayloadsMakeMoreGroups) {
  const Scratch scratch;
  WrittenRank written(scratch.path(), 0, 0, "\"start_steps\": [0]", 1 << 30);
  RandomRecords random(3);
  const SeriesId series = written.add("update_ratio", "w");
  for (int i = 0; i < 60; ++i) {
    written.row(series, i);
    Payload payload;
    payload.key.series = series;
    payload.key.window = i;
    payload.bytes.resize(1 << 20);
    for (std::size_t at = 0; at < payload.bytes.size(); at += 7) {
      payload.bytes[at] = static_cast<std::byte>(random.below(256));
    }
    written.batch().payloads.push_back(std::move(payload));
    written.write();
  }
  written.write_health(60, 60, 0, true);
  const LogContents before = read_log(written.directory(), 0, 0);
  const Compaction done = compacted(scratch.path());
  EXPECT_EQ(done.ranks.at(0).frames_after, 5);  // segment, series, three groups
  expect_same(before, read_log(written.directory(), 0, 0));
}

TEST(Compact, AForgedNumberOfRowsTakesNoMemory) {
  std::map<SeriesId, Series> series;
  series[0].kind = "grad_reduced";
  RecordBatch batch;
  batch.rows.resize(3);
  std::string frame;
  log_format::append_group_frame(frame, 1, {&batch, 1}, series);
  LogFrame sound = scan_rest(frame, 0, 1).frames.at(0);
  const std::string payload(sound.payload);
  const auto decoded = [&](std::string changed, std::optional<Columns> columns) {
    FrameBounds unbounded;  // as the second pass has them
    std::string why;
    return decode_group(changed, sound.header.raw, unbounded, why, columns, {},
                        [](RecordBatch&, const GroupedBatch&) {});
  };
  EXPECT_TRUE(decoded(payload, Columns::all()));
  std::int64_t refused = 0;
  for (std::size_t at = 0; at < payload.size(); ++at) {
    std::string changed = payload;
    changed.replace(at, 1, "\xff\xff\xff\xff\xff\xff\xff\xff\x7f");  // 2^63 - 1
    for (const std::optional<Columns> columns :
         {std::optional(Columns::all()), std::optional<Columns>()}) {
      refused += decoded(changed, columns) ? 0 : 1;
    }
  }
  EXPECT_GT(refused, std::ssize(payload) / 2);
}

TEST(Compact, AStormOfMutationsOfAGroup) {
  RandomRecords random(21);
  std::map<SeriesId, Series> series;
  for (SeriesId id = 0; id < 4; ++id) series[id] = random.series();
  std::vector<RecordBatch> batches;
  for (std::uint64_t i = 0; i < 30; ++i) batches.push_back(random.batch(i, series.size(), 20));
  std::string frame;
  log_format::append_group_frame(frame, 1, batches, series);
  const LogFrame sound = scan_rest(frame, 0, 1).frames.at(0);
  std::int64_t refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string changed(sound.payload);
    for (std::uint64_t n = random.below(4) + 1; n > 0; --n) {
      changed[random.below(changed.size())] = static_cast<char>(random.below(256));
    }
    if (random.below(8) == 0) changed.resize(random.below(changed.size()));
    Allowance allowance;
    FrameBounds bounds(changed.size(), allowance);
    std::string why;
    std::size_t rows = 0;
    const bool is_decoded =
        decode_group(changed, sound.header.raw, bounds, why, Columns::all(), {},
                     [&](RecordBatch& batch, const GroupedBatch&) {
                       rows += batch.rows.size();
                       for (const Row& row : batch.rows) {
                         ASSERT_LT(row.shape, kFirstShape + batch.shapes.size());
                       }
                     });
    ASSERT_LE(rows, changed.size());
    ASSERT_EQ(is_decoded, why.empty()) << why;
    refused += is_decoded ? 0 : 1;
  }
  EXPECT_GT(refused, 1000);
}

TEST(Compact, DamageIsNoticedAndCostsNoWrongRecord) {
  const Scratch scratch;
  const fs::path directory = write_rank(scratch.path(), 7, 12, 0, 1 << 20);
  const LogContents whole = read_log(directory, 0, 0);
  ASSERT_EQ(compacted(scratch.path()).ranks.at(0).segments, 1);
  const std::string bytes = read_file(segment_of(directory));
  const auto expect_noticed = [&](const std::string& changed, std::size_t at) {
    std::ofstream(segment_of(directory), std::ios::binary) << changed;
    const LogContents found = read_log(directory, 0, 0);
    // What is left of a first frame looks as a log does that was just begun.
    ASSERT_FALSE(found.damage.empty() && found.torn_tails == 0) << at;
    for (const RecordBatch& batch : found.batches) {
      // Where the frame of series is lost, so are the records that name one.
      if (found.series.size() == whole.series.size()) {
        ASSERT_TRUE(same(batch, whole.batches.at(batch.number))) << at;
      } else {
        ASSERT_TRUE(batch.rows.empty() && batch.payloads.empty() && batch.alerts.empty()) << at;
      }
    }
  };
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    if (at == 14 || at == 15) continue;  // the minor version
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << (at % 8)));
    expect_noticed(flipped, at);
    if (at > 0 && at % 3 == 0) expect_noticed(bytes.substr(0, at), at);
  }
}

TEST(Compact, WhatIsNotSoundStaysAsItIs) {
  struct Case {
    const char* why;
    std::function<void(std::string&)> change;
  };
  const std::vector<Case> cases = {
      {"checksum", [](std::string& bytes) { bytes[bytes.size() / 2] ^= 1; }},
      {"not complete", [](std::string& bytes) { bytes.resize(bytes.size() - 3); }},
      {"later version", [](std::string& bytes) { bytes[14] = 9; }},
      {"checksum", [](std::string& bytes) { bytes += "and more"; }},
  };
  for (const Case& one : cases) {
    const Scratch scratch;
    const fs::path file = segment_of(write_rank(scratch.path(), 3, 20, 0, 1 << 20));
    std::string bytes = read_file(file);
    one.change(bytes);
    std::ofstream(file, std::ios::binary) << bytes;
    const Compaction done = compacted(scratch.path());
    ASSERT_EQ(done.ranks.at(0).left.size(), 1u) << one.why;
    EXPECT_NE(done.ranks[0].left[0].why.find(one.why), std::string::npos)
        << done.ranks[0].left[0].why;
    EXPECT_TRUE(done.ranks[0].left[0].is_fault);
    EXPECT_EQ(read_file(file), bytes);
  }
}

#if defined(TRAINMON_FAILPOINTS)

TEST(Compact, AWriteThatFailsLeavesTheSegment) {
  for (const int error : {ENOSPC, EIO, EROFS}) {
    const Scratch scratch;
    const fs::path directory = write_rank(scratch.path(), 3, 20, 0, 1 << 20);
    const std::string bytes = read_file(segment_of(directory));
    set_failpoints("file.write=short:100;file.write=errno:" + std::to_string(error) + "@2+");
    const Compaction done = compacted(scratch.path());
    set_failpoints("");
    ASSERT_EQ(done.ranks.at(0).left.size(), 1u);
    EXPECT_TRUE(done.ranks[0].left[0].is_fault);
    EXPECT_NE(done.ranks[0].left[0].why.find("cannot write"), std::string::npos);
    EXPECT_EQ(read_file(segment_of(directory)), bytes);
    EXPECT_EQ(std::distance(fs::directory_iterator(directory), {}), 3);  // and no other file
  }
}

#endif

TEST(Compact, OfARunThatGoesOnTheLastSegmentStays) {
  const Scratch scratch;
  const fs::path directory = write_rank(scratch.path(), 5, 300);
  fs::remove(directory / "health.json");  // and run.json names no process
  const LogContents before = read_log(directory, 0, 0);
  const std::string last = read_file(segment_of(directory, static_cast<int>(before.files) - 1));
  const Compaction done = compacted(scratch.path());
  EXPECT_EQ(done.ranks.at(0).segments, before.files - 1);
  ASSERT_EQ(done.ranks[0].left.size(), 1u);
  EXPECT_FALSE(done.ranks[0].left[0].is_fault);
  EXPECT_EQ(read_file(segment_of(directory, static_cast<int>(before.files) - 1)), last);
  expect_same(before, read_log(directory, 0, 0));
}

TEST(Compact, ASegmentThatRetentionDeletesMeanwhileIsNoFault) {
  const Scratch scratch;
  const fs::path directory = write_rank(scratch.path(), 3, 60);
  ASSERT_TRUE(fs::exists(segment_of(directory, 1)));
  const Compaction done = compact(scratch.path(), [&](std::int64_t, std::int64_t) {
    fs::remove(segment_of(directory, 1));
    return true;
  });
  ASSERT_EQ(done.ranks.at(0).left.size(), 1u);
  EXPECT_EQ(done.ranks[0].left[0].segment, segment_of(directory, 1));
  EXPECT_EQ(done.ranks[0].left[0].why, "it was deleted meanwhile");
  EXPECT_FALSE(done.ranks[0].left[0].is_fault);
  EXPECT_FALSE(fs::exists(segment_of(directory, 1)));
  EXPECT_EQ(done.ranks[0].segments, 1);
}

TEST(Compact, TwoAtOnceDoNotTouchTheSameLog) {
  const Scratch scratch;
  const fs::path directory = write_rank(scratch.path(), 5, 300);
  const LogContents before = read_log(directory, 0, 0);
  {
    const File other = lock_directory(directory);
    ASSERT_TRUE(other.is_open());
    EXPECT_FALSE(lock_directory(directory).is_open());
    const Compaction done = compacted(scratch.path());
    EXPECT_EQ(done.ranks.at(0).segments, 0);
    ASSERT_EQ(done.ranks[0].left.size(), static_cast<std::size_t>(before.files));
    EXPECT_TRUE(done.ranks[0].left[0].is_fault);
    EXPECT_NE(done.ranks[0].left[0].why.find("another trainmon compact"), std::string::npos);
  }
  EXPECT_EQ(compacted(scratch.path()).ranks.at(0).segments, before.files);
  expect_same(before, read_log(directory, 0, 0));
}

TEST(Compact, ASegmentInAnothersPlaceIsSaid) {
  const Scratch one, other;
  const fs::path directory = write_rank(one.path(), 5, 300);
  const fs::path foreign = write_rank(other.path(), 6, 300);
  compacted(one.path());
  compacted(other.path());
  fs::copy_file(segment_of(foreign, 1), segment_of(directory, 1),
                fs::copy_options::overwrite_existing);
  EXPECT_FALSE(read_log(directory, 0, 0).damage.empty());
}

TEST(Compact, AReaderBetweenItsTwoPassesLosesNothing) {
  const Scratch scratch;
  const fs::path directory = write_rank(scratch.path(), 11, 400);
  const LogContents whole = read_log(directory, 0, 0);
  Allowance allowance;
  const LogIndex index(directory, 0, 0, allowance);
  ASSERT_GT(compacted(scratch.path()).ranks.at(0).segments, 3);
  std::vector<Damage> damage;
  std::vector<RecordBatch> batches;
  for (const LogIndex::Piece& piece : index.pieces()) {
    index.read(
        piece, [](SeriesId) { return true; },
        [](const LogIndex::BatchFacts&) { return std::optional(Columns::all()); },
        [&](RecordBatch&& batch, const LogIndex::BatchFacts&) {
          batches.push_back(std::move(batch));
        },
        damage);
  }
  EXPECT_TRUE(damage.empty());
  ASSERT_EQ(batches.size(), whole.batches.size());
  for (std::size_t i = 0; i < batches.size(); ++i) {
    ASSERT_TRUE(same(batches[i], whole.batches[i])) << i;
  }
}

TEST(Compact, NothingIsWrittenThroughALinkedFolder) {
  const Scratch scratch, elsewhere;
  const fs::path directory = write_rank(scratch.path(), 13, 50);
  const fs::path moved = elsewhere.path() / "restart";
  fs::rename(directory, moved);
  fs::create_directory_symlink(moved, directory);
  std::map<fs::path, std::string> before;
  for (const auto& entry : fs::directory_iterator(moved)) {
    before[entry.path()] = read_file(entry.path());
  }
  const CompactedRank rank = compacted(scratch.path()).ranks.at(0);
  EXPECT_EQ(rank.segments, 0);
  ASSERT_FALSE(rank.left.empty());
  for (const CompactedRank::Left& one : rank.left) {
    EXPECT_EQ(one.why, "its folder is a symbolic link");
  }
  for (const auto& entry : fs::directory_iterator(moved)) {
    EXPECT_EQ(before[entry.path()], read_file(entry.path()));
  }
}

TEST(Compact, AFollowerGetsEachBatchOnce) {
  const Scratch scratch;
  const fs::path directory = write_rank(scratch.path(), 12, 400);
  LogTail tail(directory, 0, 0, 1);  // the last segment
  std::map<std::uint64_t, int> seen;
  std::vector<Damage> damage;
  const auto count = [&](RecordBatch&& batch) { ++seen[batch.number]; };
  tail.look(count, damage);
  ASSERT_FALSE(seen.empty());
  const auto before = seen;
  ASSERT_GT(compacted(scratch.path()).ranks.at(0).segments, 3);
  tail.look(count, damage);
  EXPECT_EQ(seen, before);
  EXPECT_TRUE(damage.empty());
  LogTail later(directory, 0, 0, 1000);
  seen.clear();
  later.look(count, damage);
  EXPECT_EQ(seen.size(), 400u);
  EXPECT_TRUE(std::ranges::all_of(seen, [](const auto& one) { return one.second == 1; }));
}

TEST(Compact, ReadersMeanwhileSeeTheWholeLog) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const Scratch scratch;
    const fs::path directory = write_rank(scratch.path(), seed + 50, 500, 0, 8000);
    const LogContents whole = read_log(directory, 0, 0);
    std::atomic<bool> is_done = false;
    std::thread reader([&] {
      do {
        expect_same(whole, read_log(directory, 0, 0));
      } while (!is_done && !testing::Test::HasFailure());
    });
    EXPECT_GT(compacted(scratch.path()).ranks.at(0).segments, 5);
    is_done = true;
    reader.join();
    expect_same(whole, read_log(directory, 0, 0));
  }
}

}  // namespace
}  // namespace trainmon
