// The CSV files of the compatible face, read back as text: columns, order, numbers, faults.
#include "sinks/msprobe.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <sstream>

#include "base/failpoint.h"
#include "model/histogram.h"
#include "records.h"
#include "scratch.h"
#include "sinks/msprobe_csv.h"
#include "trainmon/error.h"

namespace trainmon {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(MsprobeText, RoundsAsNumpyAndPrintsAsPython) {
  // What Python's repr(round(...)) gives.
  const std::vector<std::tuple<double, int, std::string>> cases = {
      {0.1234567, 6, "0.123457"},
      {1e-9, 6, "0.0"},
      {0.5, 0, "0.0"},
      {1.5, 0, "2.0"},
      {2.5, 0, "2.0"},
      {6.1e-05, 6, "6.1e-05"},
      {1.0, 6, "1.0"},
      {-2.25, 1, "-2.2"},
      {1e300, 6, "1e+300"},
      {1e16, 6, "1e+16"},
      {123456789.125, 2, "123456789.12"},
      {kInf, 6, "inf"},
      {-kInf, 6, "-inf"},
      {std::nan(""), 6, "nan"},
      {0.1 + 0.2, 12, "0.3"},
      {1e-12, 12, "1e-12"},
      {1e15, 6, "1000000000000000.0"},
  };
  for (const auto& [value, digits, text] : cases) {
    EXPECT_EQ(msprobe_csv::rounded_text(value, digits), text) << value << " " << digits;
  }
}

TEST(MsprobeText, Shapes) {
  EXPECT_EQ(msprobe_csv::shape_text({}), "[]");
  EXPECT_EQ(msprobe_csv::shape_text({5}), "[5]");
  EXPECT_EQ(msprobe_csv::shape_text({5, 4}), "[5, 4]");
}

class ShapedSeries : public ListedSeries {
 public:
  const std::vector<std::int64_t>* shape(ShapeId id) const override {
    static const std::vector<std::int64_t> kShape = {5, 4};
    return id == 0 ? nullptr : &kShape;
  }
};

class Msprobe : public ::testing::Test {
 protected:
  Msprobe() {
    weight = add("grad_reduced", "fc.weight");
    unreduced = add("grad_unreduced", "fc.weight");
    odd = add("grad_reduced", "a \"b\", c");
    input = add("actv", "fc", "input_0");
    late_input = add("actv", "fc", "input_10");
    second_input = add("actv", "fc", "input_2");
    output = add("actv", "fc", "output");
    sum = add("cc", "all_reduce", "post.0");
    entropy = add("attn_entropy", "core");
    largest = add("attn_max", "core");
  }
  SeriesId add(const char* kind, const char* name, const char* element = "") {
    Series series;
    series.kind = kind;
    series.name = name;
    series.element = element;
    series.chunk = 2;
    return table.add(series);
  }

  std::unique_ptr<MsprobeSink> opened() {
    auto sink = make_msprobe_sink(options);
    RunInfo run;
    run.directory = scratch.path();
    run.rank = 3;
    sink->open(run, table);
    return sink;
  }
  // A tensor of `count` elements, all of them `value`.
  Row row(SeriesId series, double value, std::int64_t window, int accum = 0, int call = 0) {
    Row made;
    made.key = {series, 0, window, accum, call, seq++};
    made.shape = kFirstShape;
    RowState& s = made.state;
    s.count = 4;
    s.mean = s.min = s.max = value;
    s.sum = 4 * value;
    s.sum_sq = 4 * value * value;
    s.absmax = std::fabs(value);
    return made;
  }
  static Outcome outcome(std::int64_t window, std::int64_t step, Fate fate = Fate::taken) {
    return {0, window, step, 0, fate, 1.0};
  }
  static RecordBatch batch(std::vector<Row> rows, std::vector<Outcome> outcomes = {}) {
    RecordBatch made;
    made.rows = std::move(rows);
    made.outcomes = std::move(outcomes);
    return made;
  }
  std::string text(const std::string& name) const {
    std::ifstream file(scratch.path() / name, std::ios::binary);
    std::stringstream content;
    content << file.rdbuf();
    return content.str();
  }
  std::int64_t line_count(const std::string& name) const {
    const std::string content = text(name);
    return std::ranges::count(content, '\n');
  }
  std::set<std::string> files() const {
    std::set<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(scratch.path())) {
      found.insert(entry.path().filename());
    }
    return found;
  }

  Scratch scratch;
  MsprobeOptions options;
  ShapedSeries table;
  std::uint64_t seq = 0;
  SeriesId weight, unreduced, odd, input, late_input, second_input, output, sum, entropy, largest;
};

TEST_F(Msprobe, AStepIsWrittenWhenItWasTaken) {
  options.ops = {Stat::max, Stat::norm, Stat::nans};
  const auto sink = opened();
  sink->write(batch({row(weight, 0.25, 0), row(odd, 3, 0)}));
  EXPECT_TRUE(files().empty());
  sink->write(batch({}, {outcome(0, 7)}));
  EXPECT_EQ(files(), std::set<std::string>{"grad_reduced_7-7.csv"});
  EXPECT_EQ(text("grad_reduced_7-7.csv"),
            "vpp_stage,name,step,max,norm,nans,shape,dtype\n"
            "2,fc.weight,7,0.25,0.5,0,\"[5, 4]\",torch.float32\n"
            "2,\"a \"\"b\"\", c\",7,3.0,6.0,0,\"[5, 4]\",torch.float32\n");
}

TEST_F(Msprobe, SkippedAndUnknownAttemptsLeaveNothing) {
  const auto sink = opened();
  sink->write(batch({row(weight, 1, 0), row(weight, 2, 1), row(weight, 3, 2)},
                    {outcome(0, 0, Fate::skipped), outcome(1, 0, Fate::unknown), outcome(2, 0)}));
  EXPECT_EQ(text("grad_reduced_0-0.csv"),
            "vpp_stage,name,step,norm,shape,dtype\n2,fc.weight,0,6.0,\"[5, 4]\",torch.float32\n");
  ASSERT_EQ(sink->tensors("grad_reduced").size(), 1U);
  EXPECT_EQ(sink->tensors("grad_reduced")[0].state.max, 3);
}

TEST_F(Msprobe, RowsThatHaveNoPlaceAreCounted) {
  auto sink = opened();
  sink->write(batch({row(weight, 1, 0), row(weight, 2, 1)}, {outcome(0, 4, Fate::skipped)}));
  EXPECT_EQ(sink->rows_left_out(), (std::map<std::string, std::int64_t>{{"attempt_not_taken", 1}}));
  sink->close();
  EXPECT_EQ(sink->rows_left_out(),
            (std::map<std::string, std::int64_t>{{"attempt_not_taken", 1}, {"step_not_ended", 1}}));
}

// Gradients cleared between a forward and its backward: the forward belongs to what follows.
TEST_F(Msprobe, AForwardAfterTheLastBackwardOfAWindowGivenUpIsTheNextOnes) {
  auto sink = opened();
  sink->write(batch({row(output, 1, 0, 0), row(weight, 1, 0, 0)}));
  sink->write(batch({row(output, 2, 0, 1)}));  // the next forward, before it was known
  Outcome given_up = outcome(0, 4, Fate::unknown);
  given_up.backwards = 1;
  sink->write(batch({row(weight, 2, 1, 0)}, {given_up}));
  sink->write(batch({row(input, 3, 0, 1)}));  // what knows its forward's window only
  sink->write(batch({}, {outcome(1, 4)}));
  EXPECT_EQ(line_count("actv_4-4.csv"), 3) << text("actv_4-4.csv");
  EXPECT_NE(text("actv_4-4.csv").find("2,fc.output,4,0,"), std::string::npos);
  EXPECT_EQ(line_count("grad_reduced_4-4.csv"), 2);
  EXPECT_EQ(sink->rows_left_out(), (std::map<std::string, std::int64_t>{{"attempt_not_taken", 2}}));
}

TEST_F(Msprobe, ClosingKeepsNoHalfStep) {
  const auto sink = opened();
  sink->write(batch({row(weight, 1, 0)}));
  sink->flush();
  sink->close();
  EXPECT_TRUE(files().empty());
}

TEST_F(Msprobe, SeveralStepsShareAFileWithOneHeader) {
  options.steps_per_file = 3;
  const auto sink = opened();
  for (int step = 2; step < 5; ++step) {
    sink->write(batch({row(weight, step, step)}, {outcome(step, step)}));
  }
  EXPECT_EQ(files(), (std::set<std::string>{"grad_reduced_0-2.csv", "grad_reduced_3-5.csv"}));
  const std::string two = text("grad_reduced_3-5.csv");
  EXPECT_EQ(std::count(two.begin(), two.end(), '\n'), 3);
  EXPECT_EQ(two.find("vpp_stage", 1), std::string::npos);
}

TEST_F(Msprobe, OtherColumnsGetAFileOfTheirOwn) {
  options.steps_per_file = 10;
  const auto sink = opened();
  sink->write(batch({row(weight, 1, 0)}, {outcome(0, 0)}));
  sink->set_ops({Stat::min, Stat::max}, 1);
  sink->write(batch({row(weight, 1, 1)}, {outcome(1, 1)}));
  EXPECT_EQ(files(), (std::set<std::string>{"grad_reduced_0-9.csv", "grad_reduced_1-9.csv"}));
  EXPECT_TRUE(text("grad_reduced_1-9.csv").starts_with("vpp_stage,name,step,min,max,shape"));
}

TEST_F(Msprobe, StepsWithOtherColumnsShareOneFileToTheEndOfTheRecord) {
  options.steps_per_file = 10;
  auto sink = opened();
  sink->write(batch({row(weight, 1, 0)}, {outcome(0, 0)}));
  sink->set_ops({Stat::max}, 1);
  for (int step = 1; step < 6; ++step) {
    sink->write(batch({row(weight, 1, step)}, {outcome(step, step)}));
  }
  EXPECT_EQ(files(), (std::set<std::string>{"grad_reduced_0-9.csv", "grad_reduced_1-9.csv"}));
  EXPECT_EQ(line_count("grad_reduced_1-9.csv"), 6);
}

TEST_F(Msprobe, ModulesAreInOrderOfTheirEndsAndElementsOfTheirNumbers) {
  const auto sink = opened();
  sink->write(
      batch({row(input, 1, 0), row(late_input, 1, 0), row(second_input, 1, 0), row(output, 1, 0)},
            {outcome(0, 0)}));
  std::istringstream lines(text("actv_0-0.csv"));
  std::vector<std::string> names;
  for (std::string line; std::getline(lines, line);) names.push_back(line.substr(0, 15));
  EXPECT_EQ(names,
            (std::vector<std::string>{"vpp_stage,name,", "2,fc.input_0,0,", "2,fc.input_2,0,",
                                      "2,fc.input_10,0", "2,fc.output,0,0"}));
}

TEST_F(Msprobe, MicroStepsAndCalls) {
  options.grad_acc_steps = 2;
  const auto sink = opened();
  std::vector<Row> rows;
  for (int accum = 0; accum < 2; ++accum) {
    for (int call = 0; call < 2; ++call)
      rows.push_back(row(output, 10 * accum + call, 0, accum, call));
    rows.push_back(row(unreduced, accum, 0, accum));
    rows.push_back(row(entropy, 0.5, 0, accum));
    rows.push_back(row(largest, 0.75, 0, accum));
  }
  sink->write(batch(rows, {outcome(0, 0)}));
  EXPECT_EQ(text("actv_0-0.csv"),
            "vpp_stage,name,step,micro_step,norm,shape,dtype\n"
            "2,fc.output,0,0,0.0,\"[5, 4]\",torch.float32\n"
            "2,fc.call_1.output,0,0,2.0,\"[5, 4]\",torch.float32\n"
            "2,fc.output,0,1,20.0,\"[5, 4]\",torch.float32\n"
            "2,fc.call_1.output,0,1,22.0,\"[5, 4]\",torch.float32\n");
  // Of an accumulated gradient the last micro-step, unless every one is asked for.
  EXPECT_EQ(text("grad_unreduced_0-0.csv"),
            "vpp_stage,name,step,norm,shape,dtype\n2,fc.weight,0,2.0,\"[5, 4]\",torch.float32\n");
  EXPECT_EQ(text("attention_hook_0-0.csv"),
            "vpp_stage,name,step,micro_step,entropy,softmax_max\n"
            "2,core.attention,0,0,0.5,0.75\n2,core.attention,0,1,0.5,0.75\n");
}

TEST_F(Msprobe, GradientsOfEveryMicroStep) {
  options.grad_acc_steps = 2;
  options.micro_gradients = true;
  const auto sink = opened();
  // A weight used twice has two rows in a micro-step: the first is no whole gradient.
  sink->write(batch({row(unreduced, 7, 0, 0), row(unreduced, 1, 0, 0, 1), row(unreduced, 2, 0, 1)},
                    {outcome(0, 0)}));
  EXPECT_EQ(text("grad_unreduced_0-0.csv"),
            "vpp_stage,name,step,micro_step,norm,shape,dtype\n"
            "2,fc.weight,0,0,2.0,\"[5, 4]\",torch.float32\n"
            "2,fc.weight,0,1,4.0,\"[5, 4]\",torch.float32\n");
}

TEST_F(Msprobe, CallsOfACollectiveAreMerged) {
  options.ops = {Stat::norm, Stat::min, Stat::max, Stat::nans};
  const auto sink = opened();
  Row other = row(sum, 4, 0, 0, 1);
  other.state.nans = 1;
  other.state.count += 1;
  sink->write(batch({row(sum, 3, 0), other}, {outcome(0, 0)}));
  // Not the sum of the norms 6 and 8; with a NaN among them it is none.
  EXPECT_EQ(text("other_0-0.csv"),
            "vpp_stage,name,step,norm,min,max,nans,shape,dtype\n"
            "0,all_reduce.post_0,0,nan,nan,nan,1,nan,nan\n");
  sink->write(batch({row(sum, 3, 1), row(sum, 4, 1, 0, 1)}, {outcome(1, 1)}));
  EXPECT_NE(text("other_1-1.csv").find("all_reduce.post_0,1,10.0,3.0,4.0,0,nan,nan"),
            std::string::npos);
}

TEST_F(Msprobe, WhatADeviceDidNotGiveInTimeIsNan) {
  options.ops = {Stat::norm, Stat::nans};
  const auto sink = opened();
  Row late = row(weight, 0, 0);
  late.state = {};
  late.key.flags |= flag::kNotReady;
  sink->write(batch({late}, {outcome(0, 0)}));
  EXPECT_NE(text("grad_reduced_0-0.csv").find("fc.weight,0,nan,nan,"), std::string::npos);
}

TEST_F(Msprobe, WithoutFilesTensorsAnswer) {
  options.files = false;
  const auto sink = opened();
  sink->write(batch({row(weight, 1, 0), row(input, 2, 0)}));
  const auto found = sink->tensors("actv");  // also before the step has ended
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].tag, "2:fc.input_0:0/rank3/actv");
  EXPECT_EQ(found[0].shape, (std::vector<std::int64_t>{5, 4}));
  sink->write(batch({}, {outcome(0, 0)}));
  EXPECT_EQ(sink->tensors("grad_reduced").size(), 1U);
  EXPECT_TRUE(files().empty());
}

TEST_F(Msprobe, FilesArePrivateAndAFolderThatWentIsMadeAgain) {
  const mode_t before = ::umask(0022);
  const auto sink = opened();
  std::filesystem::remove_all(scratch.path());
  sink->write(batch({row(weight, 1, 0)}, {outcome(0, 0)}));
  struct stat status {};
  ASSERT_EQ(::stat((scratch.path() / "grad_reduced_0-0.csv").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640U);
  ::umask(before);
}

TEST_F(Msprobe, AStepTooLargeLosesRowsAndTheNextNone) {
  const auto sink = opened();
  const std::vector<Row> many(1 << 19, row(weight, 1, 0));
  sink->write(batch(many));
  sink->write(batch(many));
  EXPECT_THROW(sink->write(batch({row(weight, 1, 0)})), SinkError);
  sink->write(batch({row(odd, 1, 0)}, {outcome(0, 0, Fate::skipped)}));
  sink->write(batch({row(weight, 1, 1)}, {outcome(1, 0)}));
  EXPECT_EQ(files(), std::set<std::string>{"grad_reduced_0-0.csv"});
}

std::size_t times(const std::string& text, std::string_view what) {
  std::size_t count = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
    ++count;
  }
  return count;
}

TEST_F(Msprobe, StepsGoToOneEventFile) {
  options.events = true;
  options.ops = {Stat::norm, Stat::max};
  const auto sink = opened();
  RecordBatch first = batch({row(weight, 1, 0), row(input, 1, 0), row(sum, 1, 0)});
  const SeriesId update = add("update_ratio", "fc.weight", "update");
  Payload drawn{PayloadType::histogram, {update, 0, 0, 0, 0, seq++}, {}};
  drawn.bytes = histogram_bytes({.low = -1, .high = 1, .bins = {1, 2}});
  first.payloads.push_back(drawn);
  sink->write(first);
  sink->write(batch({}, {outcome(0, 0)}));
  sink->write(batch({row(weight, 2, 1)}, {outcome(1, 1, Fate::skipped)}));
  sink->write(batch({row(weight, 3, 2)}, {outcome(2, 1)}));
  sink->close();
  ASSERT_EQ(files().size(), 1u);
  const std::string events = text(*files().begin());
  for (const char* tag : {"2:fc.input_0:0/rank3/actv_norm", "all_reduce/rank3/post_0_max",
                          "2:fc.weight/rank3/adam_update"}) {
    EXPECT_EQ(times(events, tag), 1u) << tag;
  }
  EXPECT_EQ(times(events, "2:fc.weight/rank3/post_grad_norm"), 2u);
  const std::map<std::string, std::int64_t> left = {{"attempt_not_taken", 1}};
  EXPECT_EQ(sink->rows_left_out(), left);
}

#if defined(TRAINMON_FAILPOINTS)
TEST_F(Msprobe, EventsThatCannotBeWrittenAreTriedAgain) {
  options.events = true;
  const auto sink = opened();
  sink->write(batch({row(weight, 1, 0)}, {outcome(0, 0)}));
  const std::string before = text(*files().begin());
  sink->write(batch({row(weight, 2, 1)}));
  set_failpoints("file.write=short:9@1;file.write=errno:28@2");
  EXPECT_THROW(sink->write(batch({row(unreduced, 2, 1)}, {outcome(1, 1)})), SinkError);
  set_failpoints("");
  EXPECT_EQ(text(*files().begin()), before);
  sink->write(batch({}, {outcome(1, 1)}));
  const std::string after = text(*files().begin());
  EXPECT_EQ(times(after, "2:fc.weight/rank3/post_grad_norm"), 2u);
  EXPECT_EQ(times(after, "acc_grad"), 0u);
}

TEST_F(Msprobe, AStepThatCannotBeWrittenLeavesNothingAndIsTriedAgain) {
  options.steps_per_file = 10;
  const auto sink = opened();
  sink->write(batch({row(weight, 1, 0), row(unreduced, 1, 0)}, {outcome(0, 0)}));
  const std::string first = text("grad_reduced_0-9.csv");
  sink->write(batch({row(unreduced, 2, 1)}));
  for (const char* spec : {"file.write=errno:28@1", "file.write=errno:28@2"}) {
    set_failpoints(spec);
    EXPECT_THROW(sink->write(batch({row(weight, 2, 1), row(sum, 1, 1)}, {outcome(1, 1)})),
                 SinkError);
    set_failpoints("");
    EXPECT_EQ(text("grad_reduced_0-9.csv"), first);
    EXPECT_FALSE(files().contains("other_0-9.csv"));
  }
  // The pipe brings the outcome again; what was taken in before is still there.
  sink->write(batch({}, {outcome(1, 1)}));
  EXPECT_EQ(text("grad_reduced_0-9.csv"), first);
  EXPECT_NE(text("grad_unreduced_0-9.csv").find("fc.weight,1,4.0,"), std::string::npos);
}
#endif

}  // namespace
}  // namespace trainmon
