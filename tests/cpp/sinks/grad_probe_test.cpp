// Files of a gradient probe: their text and bytes, steps of several optimizers, disks that fail.
#include "sinks/grad_probe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <random>
#include <sstream>

#include "base/failpoint.h"
#include "base/npy.h"
#include "base/sign_file.h"
#include "model/probe_payload.h"
#include "model/state_fields.h"
#include "records.h"
#include "scratch.h"
#include "trainmon/error.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::string content(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// Every file below a directory with what it holds.
std::map<std::string, std::string> files_below(const fs::path& directory) {
  std::map<std::string, std::string> found;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file()) {
      found[fs::relative(entry.path(), directory).string()] = content(entry.path());
    }
  }
  return found;
}

class GradProbe : public ::testing::Test {
 protected:
  SeriesId add(const std::string& name) {
    Series series;
    series.kind = "grad_reduced";
    series.name = name;
    return table.add(series);
  }

  std::unique_ptr<Sink> opened() {
    auto sink = make_grad_probe_sink(options);
    RunInfo run;
    run.directory = scratch.path();
    sink->open(run, table);
    return sink;
  }

  Payload probed(SeriesId series, std::int64_t step, const std::vector<float>& values,
                 std::vector<std::int64_t> sizes = {}) {
    if (sizes.empty()) sizes = {static_cast<std::int64_t>(values.size())};
    TensorView view;
    view.data = values.data();
    view.ndim = static_cast<int>(sizes.size());
    view.sizes = sizes.data();
    Payload payload;
    payload.type = PayloadType::probe;
    payload.key.series = series;
    payload.key.window = step;
    payload.bytes =
        probe_payload(sizes, static_cast<int>(options.request.signs), probe(view, options.request));
    return payload;
  }

  RecordBatch batch(std::vector<Payload> payloads) {
    RecordBatch b;
    b.payloads = std::move(payloads);
    return b;
  }

  std::string summary(int step) const {
    return content(scratch.path() / ("grad_summary_" + std::to_string(step) + ".csv"));
  }

  Scratch scratch;
  ListedSeries table;
  GradProbeOptions options;
};

const std::vector<float> kPeer = {-2.0f, 2.0f, 0.2f, 0.3f};
constexpr const char* kMark = "\xEF\xBB\xBF";

TEST_F(GradProbe, RowsOfThePeersOwnTest) {
  const SeriesId weight = add("fc.weight");
  options.request.digest = Digest::crc32;
  options.digest_column = "MD5";
  opened()->write(batch({probed(weight, 0, kPeer, {2, 2})}));
  EXPECT_EQ(summary(0), std::string(kMark) +
                            "param_name,MD5,max,min,norm,shape\r\n"
                            "fc.weight,e2863940,2.0,-2.0,2.851315498352051,\"[2, 2]\"\r\n");
  options = {};
  options.request.intervals = true;
  options.request.bounds = {-1, 0, 1};
  opened()->write(batch({probed(weight, 1, kPeer, {2, 2})}));
  EXPECT_EQ(summary(1),
            std::string(kMark) +
                "param_name,\"(-inf, -1]\",\"(-1, 0]\",\"(0, 1]\",\"(1, inf)\",=0,max,min,norm,"
                "shape\r\n"
                "fc.weight,0.25,0.0,0.5,0.25,0.0,2.0,-2.0,2.851315498352051,\"[2, 2]\"\r\n");
}

TEST_F(GradProbe, DigestsUnderTheirOwnNames) {
  const SeriesId weight = add("w");
  options.request.digest = Digest::md5;  // the value: Python's hashlib
  opened()->write(batch({probed(weight, 0, kPeer)}));
  EXPECT_EQ(summary(0),
            std::string(kMark) +
                "param_name,md5,max,min,norm,shape\r\n"
                "w,678a6c7d9d9716682b56fda097d0936c,2.0,-2.0,2.851315498352051,[4]\r\n");
}

TEST_F(GradProbe, EmptyBoundsEmptyTensorsAndNumbersThatAreNone) {
  options.request.intervals = true;
  options.request.signs = Signs::positive;
  options.sign_files = SignFiles::npy;
  auto sink = opened();
  sink->write(batch({probed(add("nothing"), 0, {}, {0, 3}), probed(add("nan"), 0, {kNan, 1.0f}),
                     probed(add("inf"), 0, {kInf, -kInf}), probed(add("zero"), 0, {-0.0f})}));
  EXPECT_EQ(summary(0), std::string(kMark) +
                            "param_name,\"(-inf, inf)\",=0,max,min,norm,shape\r\n"
                            "nothing,0.0,0.0,nan,nan,0.0,\"[0, 3]\"\r\n"
                            "nan,1.0,0.0,nan,nan,nan,[2]\r\n"
                            "inf,1.0,0.0,inf,-inf,inf,[2]\r\n"
                            "zero,1.0,1.0,0.0,0.0,0.0,[1]\r\n");
  const std::string nothing = content(scratch.path() / "step0" / "nothing.npy");
  const NpyHead head = read_npy_head(std::as_bytes(std::span(nothing)));
  EXPECT_EQ(head.descr, "|b1");
  EXPECT_EQ(head.sizes, (std::vector<std::int64_t>{0, 3}));
  EXPECT_EQ(nothing.size(), head.data_offset);
}

TEST_F(GradProbe, SignsPackedAndAsBytesAreTheSigns) {
  std::mt19937 random(7);
  const SeriesId weight = add("layers.0.weight");
  for (const std::int64_t count : {1, 7, 8, 9, 64, 1000, 8 * (1 << 16) + 13}) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) {
      const std::uint32_t kind = random() % 8;
      value = kind == 0 ? 0.0f : kind == 1 ? kNan : std::normal_distribution<float>()(random);
    }
    for (const Signs signs : {Signs::positive, Signs::ternary}) {
      options.request.signs = signs;
      const int planes = static_cast<int>(signs);
      options.sign_files = SignFiles::packed;
      opened()->write(batch({probed(weight, 3, values)}));
      const std::string packed = content(scratch.path() / "step3" / "layers.0.weight.sign");
      options.sign_files = SignFiles::npy;
      opened()->write(batch({probed(weight, 3, values)}));
      const SignFile read = read_sign_file(std::as_bytes(std::span(packed)));
      ASSERT_EQ(read.sizes, std::vector<std::int64_t>{count});
      ASSERT_EQ(std::ssize(read.planes), planes);
      // About one bit for an element.
      EXPECT_LE(std::ssize(packed), planes * (count / 8 + 1) + 64);
      const std::string npy = content(scratch.path() / "step3" / "layers.0.weight.npy");
      const NpyHead head = read_npy_head(std::as_bytes(std::span(npy)));
      ASSERT_EQ(head.descr, planes == 2 ? "|i1" : "|b1");
      ASSERT_EQ(npy.size(), head.data_offset + values.size());
      for (std::size_t i = 0; i < values.size(); ++i) {
        const auto bit = [&](int plane) {
          return std::to_integer<int>(read.planes[static_cast<std::size_t>(plane)][i / 8]) >>
                     (i % 8) &
                 1;
        };
        ASSERT_EQ(bit(0) == 1, values[i] > 0) << i;
        ASSERT_EQ(planes == 2 && bit(1) == 1, planes == 2 && values[i] < 0) << i;
        const int sign = values[i] > 0 ? 1 : values[i] < 0 && planes == 2 ? -1 : 0;
        ASSERT_EQ(static_cast<signed char>(npy[head.data_offset + i]), sign) << i;
      }
    }
  }
}

TEST_F(GradProbe, AStepOfTwoOptimizersIsOneSummaryAndAnEarlierRunIsReplaced) {
  const SeriesId a = add("a");
  const SeriesId b = add("b");
  {
    std::ofstream(scratch.path() / "grad_summary_0.csv") << "of an earlier run";
    std::ofstream(scratch.path() / "grad_summary_9.csv") << "not touched";
  }
  auto sink = opened();
  // b lags behind: steps come out of order.
  for (const int step : {0, 1, 2, 5, 4, 3}) sink->write(batch({probed(a, step, {1.0f})}));
  for (const int step : {0, 1, 2, 3, 4, 5}) sink->write(batch({probed(b, step, {2.0f})}));
  const std::string both = std::string(kMark) +
                           "param_name,max,min,norm,shape\r\n"
                           "a,1.0,1.0,1.0,[1]\r\n"
                           "b,2.0,2.0,2.0,[1]\r\n";
  for (const int step : {0, 1, 2, 3, 4, 5}) EXPECT_EQ(summary(step), both) << step;
  EXPECT_EQ(summary(9), "not touched");
  EXPECT_TRUE(sink->rows_left_out().empty());
}

TEST_F(GradProbe, WhatIsNoProbeIsCounted) {
  auto sink = opened();
  RecordBatch mixed = batch({probed(add("a"), 0, {1.0f})});
  mixed.rows.emplace_back();
  mixed.payloads.emplace_back().type = PayloadType::text;
  mixed.payloads.emplace_back().type = PayloadType::probe;  // no bytes
  sink->write(mixed);
  EXPECT_EQ(sink->rows_left_out(), (std::map<std::string, std::int64_t>{{"no_file_for_kind", 3}}));
}

TEST_F(GradProbe, PayloadsComeBackAndBrokenOnesAreRefused) {
  options.request.intervals = true;
  options.request.bounds = {0};
  options.request.signs = Signs::ternary;
  options.request.digest = Digest::fast64;
  const Payload payload = probed(0, 0, {1.0f, -2.0f, 0.0f, kNan, 5.0f, 6.0f}, {2, 3});
  const auto found = read_probe_payload(payload.bytes);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->sizes, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(found->planes, 2);
  EXPECT_EQ(found->probe.state.count, 6);
  EXPECT_EQ(found->probe.state.nans, 1);
  EXPECT_EQ(found->probe.state.max, 6.0);
  EXPECT_EQ(found->probe.intervals, (std::vector<std::int64_t>{2, 4}));
  EXPECT_EQ(found->probe.exact_zeros, 1);
  EXPECT_EQ(found->probe.digest.size(), 16u);
  EXPECT_EQ(std::to_integer<int>(found->signs[0]), 0b110001);
  EXPECT_EQ(std::to_integer<int>(found->signs[1]), 0b000010);
  for (std::size_t size = 0; size < payload.bytes.size(); ++size) {
    EXPECT_FALSE(read_probe_payload(std::span(payload.bytes).first(size))) << size;
  }
  for (std::size_t at = 0; at < payload.bytes.size(); ++at) {
    std::vector<std::byte> damaged = payload.bytes;
    damaged[at] = ~damaged[at];
    const auto read = read_probe_payload(damaged);
    EXPECT_LE(read ? read->signs.size() : 0, 2u);
  }
}

// What trainmon 0.1.0 wrote of the tensor in the test above; bytes in hexadecimal digits.
constexpr std::string_view kVersion1 =
    "06000000000000000100000000000000000000000000000000000000000000000100000000000000"
    "00000000000000000000000000002440000000000000004000000000000047400000000000805040"
    "00000000000000c00000000000001840000000000000184000000000020000000200000000000000"
    "02000000000000000300000000000000020000000000000002000000000000000400000000000000"
    "01000000000000001000000000000000633932306466373239653039653530353102";

std::vector<std::byte> bytes_of(std::string_view digits) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
    bytes.push_back(
        static_cast<std::byte>(std::stoi(std::string(digits.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

TEST_F(GradProbe, PayloadsOfVersion1AreReadAsThoseOfToday) {
  options.request.intervals = true;
  options.request.bounds = {0};
  options.request.signs = Signs::ternary;
  options.request.digest = Digest::fast64;
  const Payload payload = probed(0, 0, {1.0f, -2.0f, 0.0f, kNan, 5.0f, 6.0f}, {2, 3});
  const std::vector<std::byte> old = bytes_of(kVersion1);
  const auto today = read_probe_payload(payload.bytes);
  const auto before = read_probe_payload(old);
  ASSERT_TRUE(today);
  ASSERT_TRUE(before);
  EXPECT_TRUE(same_bits(today->probe.state, before->probe.state));
  EXPECT_EQ(before->probe.state.mean, 2.0);
  EXPECT_EQ(before->probe.state.sum_sq, 66.0);
  EXPECT_EQ(today->sizes, before->sizes);
  EXPECT_EQ(today->planes, before->planes);
  EXPECT_EQ(today->probe.intervals, before->probe.intervals);
  EXPECT_EQ(today->probe.exact_zeros, before->probe.exact_zeros);
  EXPECT_EQ(today->probe.digest, before->probe.digest);
  EXPECT_TRUE(std::ranges::equal(today->signs, before->signs));
  for (std::size_t size = 0; size < old.size(); ++size) {
    EXPECT_FALSE(read_probe_payload(std::span(old).first(size))) << size;
  }
  // A reader of version 1 takes the first eight bytes for a count and refuses a negative one.
  std::int64_t count = 0;
  std::memcpy(&count, payload.bytes.data(), sizeof count);
  EXPECT_LT(count, 0);
}

// Of a payload of today: where the number of its fields is, and the bytes of a field.
constexpr std::size_t kFieldsAt = 20;
constexpr std::size_t kFieldBytes = 9;

void say_length(std::vector<std::byte>& bytes) {
  const std::uint64_t length = bytes.size();
  std::memcpy(bytes.data() + 12, &length, sizeof length);
}

TEST_F(GradProbe, APayloadWithAFieldMoreOrOneLessIsRead) {
  const Payload payload = probed(0, 0, {1.0f, -2.0f, 3.0f});
  std::uint32_t fields = 0;
  std::memcpy(&fields, payload.bytes.data() + kFieldsAt, sizeof fields);
  const auto end = static_cast<std::ptrdiff_t>(kFieldsAt + sizeof fields + fields * kFieldBytes);

  std::vector<std::byte> more = payload.bytes;
  more.insert(more.begin() + end, kFieldBytes, std::byte{0xee});
  const std::uint32_t one_more = fields + 1;
  std::memcpy(more.data() + kFieldsAt, &one_more, sizeof one_more);
  EXPECT_FALSE(read_probe_payload(more));  // its length is that of before
  say_length(more);
  const auto with_more = read_probe_payload(more);
  ASSERT_TRUE(with_more);
  EXPECT_TRUE(same_bits(with_more->probe.state, read_probe_payload(payload.bytes)->probe.state));

  std::vector<std::byte> less = payload.bytes;
  less.erase(less.begin() + end - 2 * std::ptrdiff_t{kFieldBytes},  // absmax
             less.begin() + end - std::ptrdiff_t{kFieldBytes});
  const std::uint32_t one_less = fields - 1;
  std::memcpy(less.data() + kFieldsAt, &one_less, sizeof one_less);
  say_length(less);
  const auto with_less = read_probe_payload(less);
  ASSERT_TRUE(with_less);
  EXPECT_EQ(with_less->probe.state.absmax, RowState{}.absmax);
  EXPECT_EQ(with_less->probe.state.sum_sq, 14.0);

  std::vector<std::byte> later = payload.bytes;
  later[8] = std::byte{3};  // the version
  EXPECT_FALSE(read_probe_payload(later));
}

#if defined(TRAINMON_FAILPOINTS)
TEST_F(GradProbe, ABatchThatCannotBeWrittenLeavesEverythingAsItWas) {
  options.request.signs = Signs::positive;
  const SeriesId a = add("a");
  const SeriesId b = add("b");
  opened()->write(batch({probed(a, 0, {1.0f}), probed(b, 0, {1.0f, 2.0f})}));
  const auto before = files_below(scratch.path());
  ASSERT_EQ(before.size(), 3u);
  const RecordBatch next = batch({probed(a, 0, {-1.0f}), probed(b, 0, {-1.0f, 3.0f})});
  for (const char* site : {"file.open", "file.write"}) {
    for (int hit = 1; hit <= 3; ++hit) {
      auto sink = opened();
      set_failpoints(std::string(site) + "=errno:28@" + std::to_string(hit));
      EXPECT_THROW(sink->write(next), SinkError) << site << hit;
      set_failpoints("");
      EXPECT_EQ(files_below(scratch.path()), before) << site << hit;
    }
  }
  {
    auto sink = opened();
    set_failpoints("file.write=errno:28@1");
    EXPECT_THROW(sink->write(batch({probed(a, 1, {1.0f})})), SinkError);
    set_failpoints("");
    EXPECT_FALSE(fs::exists(scratch.path() / "step1"));  // no empty directories
  }
  auto sink = opened();
  sink->write(next);  // the disk has room again
  const auto after = files_below(scratch.path());
  EXPECT_EQ(after.size(), 3u);
  EXPECT_NE(after, before);
}
#endif

TEST_F(GradProbe, ANameThatCannotBeTakenLeavesNothingOfItsBatch) {
  options.request.signs = Signs::positive;
  fs::create_directories(scratch.path() / "step0" / "b.sign" / "in the way");
  auto sink = opened();
  EXPECT_THROW(sink->write(batch({probed(add("a"), 0, {1.0f}), probed(add("b"), 0, {1.0f})})),
               SinkError);
  EXPECT_TRUE(files_below(scratch.path()).empty());
}

TEST_F(GradProbe, TheOtherFormOfAnEarlierRunIsRemoved) {
  options.request.signs = Signs::positive;
  const SeriesId w = add("w");
  for (const SignFiles form : {SignFiles::packed, SignFiles::npy, SignFiles::packed}) {
    options.sign_files = form;
    opened()->write(batch({probed(w, 0, {1.0f})}));
    const bool is_packed = form == SignFiles::packed;
    EXPECT_EQ(fs::exists(scratch.path() / "step0" / "w.sign"), is_packed);
    EXPECT_EQ(fs::exists(scratch.path() / "step0" / "w.npy"), !is_packed);
  }
}

TEST_F(GradProbe, OfTwoParametersWithOneFileNameOnlyTheSecondIsLost) {
  options.request.signs = Signs::positive;
  // What the second is called on purpose: the first, cut.
  const SeriesId one = add(std::string(300, 'x'));
  const SeriesId two = add(file_name_of(std::string(300, 'x')));
  const SeriesId other = add("other");
  auto sink = opened();
  sink->write(batch({probed(one, 0, {1.0f}), probed(two, 0, {2.0f}), probed(other, 0, {3.0f})}));
  sink->write(batch({probed(two, 1, {2.0f}), probed(other, 1, {3.0f})}));
  sink->write(batch({probed(one, 1, {1.0f}), probed(one, 1, {1.0f})}));  // a name that came twice
  EXPECT_EQ(sink->rows_left_out(), (std::map<std::string, std::int64_t>{{"same_file_name", 3}}));
  for (const int step : {0, 1}) {
    EXPECT_NE(summary(step).find(",1.0,1.0,1.0,[1]"), std::string::npos);
    EXPECT_NE(summary(step).find("other,3.0,3.0,3.0,[1]"), std::string::npos);
    EXPECT_EQ(summary(step).find(",2.0"), std::string::npos);
  }
  EXPECT_EQ(files_below(scratch.path()).size(), 6u);
}

TEST_F(GradProbe, ADirectoryThatIsRemovedIsMadeAgain) {
  auto sink = opened();
  const SeriesId a = add("a");
  sink->write(batch({probed(a, 0, {1.0f})}));
  fs::remove_all(scratch.path());
  sink->write(batch({probed(a, 0, {2.0f})}));
  EXPECT_EQ(summary(0),
            std::string(kMark) + "param_name,max,min,norm,shape\r\na,2.0,2.0,2.0,[1]\r\n");
}

TEST(GradProbeNames, AreFileNames) {
  EXPECT_EQ(file_name_of("module.layers.0.weight"), "module.layers.0.weight");
  EXPECT_EQ(file_name_of("a/b"), "a%2Fb");
  EXPECT_EQ(file_name_of("../x"), "..%2Fx");
  EXPECT_EQ(file_name_of("a%2Fb"), "a%252Fb");
  EXPECT_EQ(file_name_of(std::string("a\0b", 3)), "a%00b");
  EXPECT_EQ(file_name_of("a_b"), "a_b");
  const std::string one = file_name_of(std::string(300, 'x') + "1");
  const std::string two = file_name_of(std::string(300, 'x') + "2");
  EXPECT_EQ(one.size(), 200u);
  EXPECT_NE(one, two);
  std::string wide;
  for (int i = 0; i < 100; ++i) wide += "\xE6\xA2\xAF";  // three bytes each
  const std::string cut = file_name_of(wide);
  EXPECT_LE(cut.size(), 200u);
  EXPECT_EQ(cut.find('~') % 3, 0u);  // no character is cut in two
}

}  // namespace
}  // namespace trainmon
