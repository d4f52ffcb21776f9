// An index beside a segment changes nothing of what is read, whatever its bytes are and whatever
// becomes of the segment; and it is there where it may be.
#include "read/index_file.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <limits>
#include <set>
#include <thread>

#include "base/failpoint.h"
#include "base/file.h"
#include "read/compact.h"
#include "read/log.h"
#include "read/log_index.h"
#include "records.h"
#include "scratch.h"
#include "sinks/compress.h"
#include "sinks/log_format.h"
#include "written_run.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

constexpr LogIndex::Kept kAll = {0, true};
constexpr std::int64_t kLate = std::numeric_limits<std::int64_t>::max();

// Batches of all records, in segments of about so many bytes; closed in order.
fs::path write_rank(const fs::path& run, std::uint64_t seed, std::size_t count,
                    std::size_t segment = 20000) {
  RandomRecords random(seed);
  WrittenRank written(run, 0, 0, "\"start_steps\": [0]", segment);
  std::size_t series = 0;
  for (int i = 0; i < 5; ++i) series = written.add(random.series()) + std::size_t{1};
  for (std::size_t i = 0; i < count; ++i) {
    written.batch() = random.batch(i, series, 6);
    written.write();
  }
  written.write_health(1, 1, 0, true);
  return written.directory();
}

fs::path segment_of(const fs::path& directory, int number = 0) {
  return directory / log_format::segment_name(number);
}
fs::path index_in(const fs::path& directory, int number = 0) {
  return index_path(segment_of(directory, number));
}
void put(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// All that a reader gets of a log in its two passes.
struct Seen {
  LogContents contents;
  std::vector<LogIndex::BatchFacts> facts;
  std::vector<RecordBatch> batches;
  std::vector<Damage> damage;  // of the second pass
};
Seen see(const LogIndex& index) {
  Seen seen;
  seen.contents = index.contents();
  for (const LogIndex::Piece& piece : index.pieces()) {
    index.read(
        piece, [](SeriesId) { return true; },
        [](const LogIndex::BatchFacts&) { return std::optional(Columns::all()); },
        [&](RecordBatch&& batch, const LogIndex::BatchFacts& facts) {
          seen.batches.push_back(std::move(batch));
          seen.facts.push_back(facts);
        },
        seen.damage);
  }
  return seen;
}
Seen see(const fs::path& directory, LogIndex::Kept kept = {}, unsigned threads = 1) {
  Allowance allowance;
  return see(LogIndex(directory, 0, 0, allowance, threads, kept));
}

void expect_same(const std::vector<Damage>& a, const std::vector<Damage>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].file, b[i].file);
    EXPECT_EQ(a[i].offset, b[i].offset);
    EXPECT_EQ(a[i].what, b[i].what);
  }
}
void expect_same(const std::vector<RecordBatch>& a, const std::vector<RecordBatch>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_TRUE(same(a[i], b[i])) << "batch " << i;
}
// Also of what only the first pass knows.
void expect_same(const Seen& a, const Seen& b) {
  EXPECT_EQ(a.contents.series, b.contents.series);
  EXPECT_EQ(a.contents.windows, b.contents.windows);
  EXPECT_EQ(a.contents.rows, b.contents.rows);
  EXPECT_EQ(a.contents.payloads, b.contents.payloads);
  EXPECT_EQ(a.contents.batch_count, b.contents.batch_count);
  EXPECT_EQ(a.contents.last_time_ns, b.contents.last_time_ns);
  EXPECT_EQ(a.contents.files, b.contents.files);
  EXPECT_EQ(a.contents.bytes, b.contents.bytes);
  EXPECT_EQ(a.contents.torn_tails, b.contents.torn_tails);
  expect_same(a.contents.damage, b.contents.damage);
  expect_same(a.contents.batches, b.contents.batches);
  expect_same(a.damage, b.damage);
  expect_same(a.batches, b.batches);
  ASSERT_EQ(a.facts.size(), b.facts.size());
  for (std::size_t i = 0; i < a.facts.size(); ++i) {
    EXPECT_EQ(a.facts[i].rows, b.facts[i].rows);
    EXPECT_EQ(a.facts[i].payloads, b.facts[i].payloads);
    EXPECT_EQ(a.facts[i].first_window, b.facts[i].first_window);
    EXPECT_EQ(a.facts[i].last_window, b.facts[i].last_window);
    EXPECT_EQ(a.facts[i].has_bad_rows, b.facts[i].has_bad_rows);
    EXPECT_EQ(a.facts[i].series, b.facts[i].series);
  }
}

// An index as its writer would have made it of these bytes.
std::string with_checksum(std::string bytes) {
  constexpr std::size_t kChecksum = 8;
  bytes.resize(bytes.size() - kChecksum);
  const std::uint64_t digest = content_digest(bytes);
  log_format::ByteWriter(bytes).fixed(digest);
  return bytes;
}

TEST(IndexFile, ChangesNothingAndIsUsed) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const Scratch scratch;
    const fs::path directory = write_rank(scratch.path(), seed, 300);
    const Seen without = see(directory);
    const auto segments = static_cast<int>(without.contents.files);
    ASSERT_GT(segments, 3);
    EXPECT_FALSE(fs::exists(index_in(directory)));
    expect_same(without, see(directory, kAll));  // which writes them
    for (int i = 0; i < segments; ++i) ASSERT_TRUE(fs::exists(index_in(directory, i))) << i;
    expect_same(without, see(directory, kAll));
    expect_same(without, see(directory, kAll, 3));
    // One that says another time of its newest batch is believed: nothing of it is wrong.
    const std::string bytes = read_file(index_in(directory));
    std::optional<SegmentIndex> index = index_of(bytes);
    ASSERT_TRUE(index);
    index->contents.last_time_ns = kLate;
    put(index_in(directory), index_bytes(*key_of_index(bytes), *index));
    EXPECT_EQ(see(directory, kAll).contents.last_time_ns, kLate);
    // Whoever looks for damage reads the log alone.
    EXPECT_EQ(check_log(directory, 0, 0).last_time_ns, without.contents.last_time_ns);
    EXPECT_EQ(read_log(directory, 0, 0).last_time_ns, without.contents.last_time_ns);
  }
}

TEST(IndexFile, OfSegmentsThatMayStillGrowOrAreSmallThereIsNone) {
  const Scratch scratch;
  const fs::path directory = write_rank(scratch.path(), 5, 300);
  const auto last = static_cast<int>(see(directory).contents.files) - 1;
  see(directory, {std::int64_t{1} << 20, true});
  EXPECT_FALSE(fs::exists(index_in(directory)));
  see(directory, {0, false});
  EXPECT_TRUE(fs::exists(index_in(directory, last - 1)));
  EXPECT_FALSE(fs::exists(index_in(directory, last)));
  see(directory, kAll);
  EXPECT_TRUE(fs::exists(index_in(directory, last)));
}

TEST(IndexFile, OfADamagedSegmentThereIsNone) {
  const Scratch scratch;
  const fs::path directory = write_rank(scratch.path(), 6, 20, 1 << 20);
  std::string bytes = read_file(segment_of(directory));
  bytes[bytes.size() / 2] ^= 1;
  put(segment_of(directory), bytes);
  const Seen without = see(directory);
  ASSERT_FALSE(without.contents.damage.empty());
  expect_same(without, see(directory, kAll));
  EXPECT_FALSE(fs::exists(index_in(directory)));
}

TEST(IndexFile, OneThatIsCutOrChangedIsMadeAgain) {
  const Scratch scratch;
  const fs::path directory = write_rank(scratch.path(), 7, 3, 1 << 20);
  const Seen without = see(directory);
  see(directory, kAll);
  const std::string bytes = read_file(index_in(directory));
  const auto expect_made_again = [&](const std::string& changed, std::size_t at) {
    put(index_in(directory), changed);
    expect_same(without, see(directory, kAll));
    ASSERT_EQ(read_file(index_in(directory)), bytes) << at;
  };
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << (at % 8)));
    expect_made_again(flipped, at);
    if (at % 3 == 0) expect_made_again(bytes.substr(0, at), at);
  }
  expect_made_again(bytes + '\0', bytes.size());
  std::string other_version = bytes;
  other_version[8] = static_cast<char>(other_version[8] + 1);
  expect_made_again(with_checksum(other_version), 8);
}

TEST(IndexFile, AnotherSegmentsIsNotUsed) {
  const Scratch one, other;
  const fs::path directory = write_rank(one.path(), 8, 300);
  const fs::path foreign = write_rank(other.path(), 9, 300);
  const Seen without = see(directory);
  see(directory, kAll);
  see(foreign, kAll);
  const std::string bytes = read_file(index_in(directory, 1));
  const auto replace = fs::copy_options::overwrite_existing;
  fs::copy_file(index_in(foreign, 1), index_in(directory, 1), replace);
  expect_same(without, see(directory, kAll));
  EXPECT_EQ(read_file(index_in(directory, 1)), bytes);
  fs::copy_file(index_in(directory, 2), index_in(directory, 1), replace);
  expect_same(without, see(directory, kAll));
  EXPECT_EQ(read_file(index_in(directory, 1)), bytes);
}

TEST(IndexFile, ASegmentThatChangesIsReadAsIfThereWereNone) {
  const Scratch scratch;
  const fs::path directory = write_rank(scratch.path(), 10, 3, 1 << 20);
  see(directory, kAll);
  const std::string bytes = read_file(segment_of(directory)),
                    index = read_file(index_in(directory));
  const fs::file_time_type written = fs::last_write_time(segment_of(directory));
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << (at % 8)));
    put(segment_of(directory), flipped);
    fs::last_write_time(segment_of(directory), written);  // nobody need notice
    put(index_in(directory), index);
    expect_same(see(directory), see(directory, kAll));
    if (testing::Test::HasFailure()) FAIL() << at;
  }
}

// Who may write there may write another log, too: what must hold is that nothing else goes wrong.
TEST(IndexFile, AForgedOneCostsNoWrongRowAndNoMemory) {
  const Scratch scratch;
  const fs::path directory = write_rank(scratch.path(), 11, 40, 1 << 20);
  const Seen without = see(directory);
  std::set<std::uint64_t> seqs;
  for (const RecordBatch& batch : without.batches) {
    for (const Row& row : batch.rows) seqs.insert(row.key.seq);
  }
  see(directory, kAll);
  const IndexKey key = *key_of_index(read_file(index_in(directory)));
  SegmentIndex index = *index_of(read_file(index_in(directory)));
  RandomRecords random(12);
  std::int64_t refused = 0, damaged = 0;
  for (int round = 0; round < 1000; ++round) {
    SegmentIndex forged = index;
    for (std::uint64_t n = random.below(3) + 1; n > 0; --n) {
      BatchPlace& place = forged.places[random.below(forged.places.size())];
      const std::int64_t number = random.integer();
      switch (random.below(9)) {
        case 0:
          place.offset = random.below(2) == 0 ? number : place.offset + number % 64;
          break;
        case 1:
          place.stored = static_cast<std::uint32_t>(number);
          break;
        case 2:
          place.number = static_cast<std::uint64_t>(number);
          break;
        case 3:
          place.facts.rows = number;
          break;
        case 4:
          place.facts.payloads = number;
          break;
        case 5:
          place.facts.first_window = number;
          break;
        case 6:
          place.facts.last_window = number;
          break;
        case 7:
          forged.contents.series.own().erase(static_cast<SeriesId>(random.below(5)));
          break;
        default:
          place.facts.series = static_cast<std::uint64_t>(number);
      }
    }
    put(index_in(directory), index_bytes(key, forged));
    refused += index_of(read_file(index_in(directory))) ? 0 : 1;
    const Seen seen = see(directory, kAll);
    damaged += seen.damage.empty() ? 0 : 1;
    ASSERT_LE(seen.batches.size(), without.batches.size());
    for (const RecordBatch& batch : seen.batches) {
      for (const Row& row : batch.rows) ASSERT_TRUE(seqs.contains(row.key.seq));
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(damaged, 20);
}

TEST(IndexFile, AStormOfMutationsThatTheChecksumCovers) {
  const Scratch scratch;
  const fs::path directory = write_rank(scratch.path(), 13, 40, 1 << 20);
  see(directory, kAll);
  // Not packed, so that what is behind the packing is met.
  std::string bytes = read_file(index_in(directory));
  constexpr std::size_t kSize = 46, kCodec = kSize + 8, kBody = kCodec + 1, kChecksum = 8;
  log_format::ByteReader size(std::string_view(bytes).substr(kSize));
  std::string body;
  const std::string_view packed(bytes.data() + kBody, bytes.size() - kBody - kChecksum);
  ASSERT_TRUE(decompress(packed, size.fixed<std::uint64_t>(), body));
  bytes = bytes.substr(0, kCodec) + '\0' + body + std::string(kChecksum, '\0');
  ASSERT_TRUE(index_of(with_checksum(bytes)));
  RandomRecords random(14);
  std::int64_t refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string changed = bytes;
    for (std::uint64_t n = random.below(4) + 1; n > 0; --n) {
      changed[kBody + random.below(body.size())] = static_cast<char>(random.below(256));
    }
    if (random.below(8) == 0) changed.resize(kChecksum + random.below(changed.size() - kChecksum));
    const std::optional<SegmentIndex> found = index_of(with_checksum(changed));
    refused += found ? 0 : 1;
    if (!found) continue;
    ASSERT_LE(found->places.size(), bytes.size());
    for (const BatchPlace& place : found->places) {
      ASSERT_LE(place.offset + static_cast<std::int64_t>(place.stored), found->contents.bytes);
      ASSERT_FALSE(place.is_believed);
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_LT(refused, 20000);
}

#if defined(TRAINMON_FAILPOINTS)

TEST(IndexFile, WhereNobodyMayWriteThereIsNone) {
  for (const int error : {EROFS, EACCES, ENOSPC, EIO}) {
    const Scratch scratch;
    const fs::path directory = write_rank(scratch.path(), 15, 40, 1 << 20);
    const Seen without = see(directory);
    set_failpoints("file.write=errno:" + std::to_string(error));
    const Seen with = see(directory, kAll);
    set_failpoints("");
    expect_same(without, with);
    EXPECT_EQ(std::distance(fs::directory_iterator(directory), {}), 3);
  }
}

#endif

TEST(IndexFile, CompactionTakesItAway) {
  const Scratch scratch;
  const fs::path directory = write_rank(scratch.path(), 16, 300);
  const Seen without = see(directory);
  see(directory, kAll);
  compact(scratch.path(), [](std::int64_t, std::int64_t) { return true; });
  EXPECT_FALSE(fs::exists(index_in(directory)));
  EXPECT_EQ(see(directory, kAll).contents.rows, without.contents.rows);
  EXPECT_TRUE(fs::exists(index_in(directory)));
  expect_same(see(directory), see(directory, kAll));
}

// One that was read before its segment was compacted tells where batches were.
TEST(IndexFile, ASegmentCompactedBetweenTheTwoPassesLosesNothing) {
  const Scratch scratch;
  const fs::path directory = write_rank(scratch.path(), 17, 300);
  const Seen without = see(directory);
  see(directory, kAll);
  Allowance allowance;
  const LogIndex index(directory, 0, 0, allowance, 1, kAll);
  compact(scratch.path(), [](std::int64_t, std::int64_t) { return true; });
  const Seen seen = see(index);
  EXPECT_TRUE(seen.damage.empty());
  expect_same(without.batches, seen.batches);
}

TEST(IndexFile, ReadersAtTheSameTimeAndACompactionAgree) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const Scratch scratch;
    const fs::path directory = write_rank(scratch.path(), seed + 50, 400, 8000);
    const Seen without = see(directory);
    std::atomic<bool> is_done = false;
    const auto keep_reading = [&] {
      do {
        const Seen seen = see(directory, kAll);
        expect_same(without.batches, seen.batches);
        EXPECT_EQ(without.contents.windows, seen.contents.windows);
        EXPECT_TRUE(seen.contents.damage.empty() && seen.damage.empty());
      } while (!is_done && !testing::Test::HasFailure());
    };
    std::thread one(keep_reading), another(keep_reading);
    compact(scratch.path(), [](std::int64_t, std::int64_t) { return true; });
    is_done = true;
    one.join();
    another.join();
    expect_same(see(directory), see(directory, kAll));
  }
}

}  // namespace
}  // namespace trainmon
