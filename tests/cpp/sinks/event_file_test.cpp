// Records as TensorBoard's own writer makes them: the bytes below came from its RecordWriter and
// its compiled protocol buffers.
#include "sinks/event_file.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <limits>

#include "base/failpoint.h"
#include "scratch.h"

namespace trainmon {
namespace {

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    text += "0123456789abcdef"[static_cast<unsigned char>(c) >> 4];
    text += "0123456789abcdef"[c & 0xF];
  }
  return text;
}

TEST(EventRecords, TheVersionOfTheFile) {
  EventRecords records;
  records.version(1.5);
  EXPECT_EQ(hex(records.bytes()),
            "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c");
}

TEST(EventRecords, TheStartOfASession) {
  EventRecords records;
  records.session_start(1.5, 300);
  EXPECT_EQ(hex(records.bytes()),
            "100000000000000095fbfe1809000000000000f83f10ac023a020801713b788a");
}

TEST(EventRecords, ScalarsOfOneEvent) {
  EventRecords records;
  records.begin(2.25, 7);
  records.scalar("norm/a", 0.5);
  records.scalar("\xC3\xA9", -std::numeric_limits<double>::infinity());
  records.end();
  EXPECT_EQ(hex(records.bytes()),
            "2700000000000000bbe1b14609000000000000024010072a1a0a0d0a066e6f726d2f61150000003f"
            "0a090a02c3a915000080ffef0ca54d");
}

TEST(EventRecords, AHistogram) {
  EventRecords records;
  records.begin(2.25, -1);
  records.histogram("h", {.low = -1, .high = 1, .bins = {3, 0, 1, 2}, .below = 9, .above = 8});
  records.end();
  EXPECT_EQ(hex(records.bytes()),
            "8e00000000000000c67db15209000000000000024010ffffffffffffffffff012a780a760a01682a"
            "7109000000000000f0bf11000000000000f03f19000000000000184021000000000000e0bf290000"
            "0000000007403220000000000000e0bf0000000000000000000000000000e03f000000000000f03f"
            "3a2000000000000008400000000000000000000000000000f03f0000000000000040fccc4e2d");
}

TEST(EventRecords, AText) {
  EventRecords records;
  records.begin(2.25, 200);
  records.text("t", "who\ncalled");
  records.end();
  EXPECT_EQ(hex(records.bytes()),
            "3500000000000000d6c55de609000000000000024010c8012a270a250a0174421408071204120208"
            "01420a77686f0a63616c6c65644a0a0a060a04746578742002d467d984");
}

TEST(EventRecords, NothingWithoutValues) {
  EventRecords records;
  records.begin(1.0, 1);
  records.end();
  EXPECT_TRUE(records.empty());
}

// 0xFF is in no UTF-8 text, and a reader refuses the whole event for it.
TEST(EventRecords, ATagThatIsNotUtf8) {
  EventRecords bad;
  bad.begin(1.0, 1);
  bad.scalar("a\xFFz", 1.0);
  bad.end();
  EventRecords good;
  good.begin(1.0, 1);
  good.scalar("a\xEF\xBF\xBDz", 1.0);
  good.end();
  EXPECT_EQ(bad.bytes(), good.bytes());
}

TEST(EventRecords, AFiniteValueStaysFinite) {
  EventRecords records;
  records.begin(1.0, 1);
  records.scalar("a", -1e300);
  records.end();
  const std::string bytes = records.bytes();
  EXPECT_EQ(hex(std::string_view(bytes).substr(bytes.size() - 8, 4)), "ffff7fff");  // -FLT_MAX
}

TEST(EventRecords, AnEventThatGrowsLongIsContinued) {
  EventRecords records;
  records.begin(1.0, 1);
  const std::string tag(1000, 'a');
  for (int i = 0; i < 3000; ++i) records.scalar(tag, i);
  records.end();
  // Each record tells its length in its first eight bytes.
  int count = 0;
  for (std::size_t at = 0; at < records.bytes().size(); ++count) {
    std::uint64_t length = 0;
    std::memcpy(&length, records.bytes().data() + at, sizeof length);
    EXPECT_LT(length, (1u << 20) + 2000);
    at += 16 + length;
  }
  EXPECT_EQ(count, 3);
}

TEST(EventFileName, SortsByTimeThenRestartThenNumber) {
  const std::string first = event_file_name(1000000000, 9);
  EXPECT_EQ(first.find("events.out.tfevents.1000000000.0009."), 0u);
  EXPECT_LT(first, event_file_name(1000000000, 9, 1));
  EXPECT_LT(event_file_name(1000000000, 9, 9), event_file_name(1000000000, 9, 10));
  EXPECT_LT(event_file_name(1000000000, 9, 10), event_file_name(1000000000, 10));
  EXPECT_LT(event_file_name(1000000000, 10), event_file_name(1000000001, 0));
}

TEST(EventFile, NeverTakesAFileThatIsThere) {
  const Scratch scratch;
  EventFile one;
  one.create(scratch.path() / "events", 1.0);
  EventFile two;
  try {
    two.create(scratch.path() / "events", 1.0);
    FAIL() << "created over another";
  } catch (const SinkError& error) {
    EXPECT_EQ(error.reason(), "exists");
  }
}

TEST(EventFile, NoticesThatItWasDeleted) {
  const Scratch scratch;
  EventFile file;
  file.create(scratch.path() / "events", 1.0);
  EXPECT_FALSE(file.is_deleted());
  std::filesystem::remove(scratch.path() / "events");
  EXPECT_TRUE(file.is_deleted());
}

#if defined(TRAINMON_FAILPOINTS)

TEST(EventFile, AFailedWriteLeavesNothing) {
  const Scratch scratch;
  const auto path = scratch.path() / "events";
  EventFile file;
  file.create(path, 1.0);
  file.append("first");
  set_failpoints("file.write=short:3@1;file.write=errno:" + std::to_string(ENOSPC) + "@2");
  EXPECT_THROW(file.append("second"), SinkError);
  set_failpoints("");
  EXPECT_TRUE(file.is_open());
  file.append("third");
  EXPECT_EQ(read_file(path).substr(40), "firstthird");
}

TEST(EventFile, IsGivenUpWhereDebrisCannotBeCutOff) {
  const Scratch scratch;
  EventFile file;
  file.create(scratch.path() / "events", 1.0);
  set_failpoints("file.write=short:3@1;file.write=errno:5@2;event_file.truncate=errno:5");
  EXPECT_THROW(file.append("second"), SinkError);
  set_failpoints("");
  EXPECT_FALSE(file.is_open());
}

#endif

}  // namespace
}  // namespace trainmon
