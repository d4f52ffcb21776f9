// anomaly.json read back with a JSON parser that is not ours: entries, bounds, and that whoever
// reads it at any moment finds a whole object.
#include "sinks/msprobe_anomaly.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/failpoint.h"
#include "records.h"
#include "scratch.h"
#include "trainmon/error.h"

namespace trainmon {
namespace {

using Json = nlohmann::ordered_json;

std::string content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Sets the umask that modes are stated for.
struct Umask {
  mode_t before = ::umask(0022);
  ~Umask() { ::umask(before); }
};

class MsprobeAnomaly : public ::testing::Test {
 protected:
  MsprobeAnomaly() {
    options.base = scratch.path() / "out";
    options.rank = 3;
    options.pp_stage = 1;
    options.group_mates = {1, 3};
    options.micro_steps = 2;
    Series series;
    series.kind = "grad_reduced";
    series.name = "fc.weight";
    weight = table.add(series);
    series.kind = "actv";
    series.name = "fc";
    series.element = "input_1";
    series.chunk = 2;
    activation = table.add(series);
  }

  std::filesystem::path path() const {
    return scratch.path() / "out" / "anomaly_detected" / "rank3" / "anomaly.json";
  }
  Json json() const { return Json::parse(content(path())); }

  std::unique_ptr<Sink> opened() {
    auto sink = make_msprobe_anomaly_sink(options);
    sink->open(RunInfo(), table);
    return sink;
  }

  Alert alert(SeriesId series, std::int64_t window, std::uint64_t seq, const char* stat = "norm",
              int accum = 0) const {
    Alert found;
    found.rule = "AnomalyTurbulence";
    found.key = {series, 0, window, accum, 0, seq};
    found.step = window + 10;
    found.stat = stat;
    found.value = 0.73;
    found.expected = 0.25;
    return found;
  }
  RecordBatch batch(std::int64_t window, std::uint64_t first_seq, std::uint64_t rows) const {
    RecordBatch b;
    for (std::uint64_t i = 0; i < rows; ++i) {
      b.rows.push_back({{weight, 0, window, 0, 0, first_seq + i}, {}});
    }
    return b;
  }

  Scratch scratch;
  MsprobeAnomalyOptions options;
  ListedSeries table;
  SeriesId weight = 0, activation = 0;
};

TEST_F(MsprobeAnomaly, BeginsAsAnEmptyObjectWithItsModes) {
  const Umask known;
  const auto sink = opened();
  EXPECT_EQ(content(path()), "{}");
  struct stat status {};
  ASSERT_EQ(::stat(path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
  ASSERT_EQ(::stat(path().parent_path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0750u);
}

TEST_F(MsprobeAnomaly, EveryFieldOfAnEntry) {
  const auto sink = opened();
  RecordBatch first = batch(5, 100, 10);
  first.alerts.push_back(alert(weight, 5, 104));
  first.alerts.push_back(alert(weight, 5, 104, "mean"));
  sink->write(first);
  RecordBatch second = batch(5, 110, 10);
  second.alerts.push_back(alert(activation, 5, 112, "max", 3));
  sink->write(second);
  sink->flush();
  sink->close();
  const Json expected = Json::parse(R"({
    "0:fc.weight/rank3/post_grad_norm_step_15_call_4": {"rank": 3, "step": 15, "micro_step": 0,
      "pp_stage": 1, "vpp_stage": 0, "call_id": 4, "tag_name": "0:fc.weight/rank3/post_grad",
      "message": "Rule AnomalyTurbulence reports anomaly signal in ('0:fc.weight/rank3/post_grad', 'norm') at step 15, current value 0.73, history mean 0.25.",
      "group_mates": [1, 3]},
    "0:fc.weight/rank3/post_grad_mean_step_15_call_4": {"rank": 3, "step": 15, "micro_step": 0,
      "pp_stage": 1, "vpp_stage": 0, "call_id": 4, "tag_name": "0:fc.weight/rank3/post_grad",
      "message": "Rule AnomalyTurbulence reports anomaly signal in ('0:fc.weight/rank3/post_grad', 'mean') at step 15, current value 0.73, history mean 0.25.",
      "group_mates": [1, 3]},
    "2:fc.input_1:1/rank3/actv_max_step_15_call_12": {"rank": 3, "step": 15, "micro_step": 1,
      "pp_stage": 1, "vpp_stage": 2, "call_id": 12, "tag_name": "2:fc.input_1:1/rank3/actv",
      "message": "Rule AnomalyTurbulence reports anomaly signal in ('2:fc.input_1:1/rank3/actv', 'max') at step 15, current value 0.73, history mean 0.25.",
      "group_mates": [1, 3]}})");
  EXPECT_EQ(json(), expected);
  EXPECT_EQ(content(path()), expected.dump(1));  // byte by byte, indent 1
}

TEST_F(MsprobeAnomaly, TagsOfEveryKind) {
  const auto tag = [&](std::string_view kind, std::string name, std::string element,
                       bool micro_gradients = false) {
    Series series;
    series.kind = kind;
    series.name = std::move(name);
    series.element = std::move(element);
    MsprobeAnomalyOptions naming;
    naming.micro_gradients = micro_gradients;
    return msprobe_tag(series, {0, 0, 0, 3, 0, 0}, naming);
  };
  EXPECT_EQ(tag("actv", "fc", "input_1"), "0:fc.input_1:3/rank0/actv");
  EXPECT_EQ(tag("actv", "", "output"), "0:.output:3/rank0/actv");
  EXPECT_EQ(tag("actv_grad", "fc", "input"), "0:fc.input:3/rank0/actv_grad");
  EXPECT_EQ(tag("grad_unreduced", "fc.weight", ""), "0:fc.weight/rank0/acc_grad");
  EXPECT_EQ(tag("grad_unreduced", "fc.weight", "", true), "0:fc.weight:3/rank0/acc_grad");
  EXPECT_EQ(tag("grad_reduced", "fc.weight", "", true), "0:fc.weight/rank0/post_grad");
  for (const char* same :
       {"param_origin", "param_updated", "exp_avg", "exp_avg_sq", "mg_direction"}) {
    EXPECT_EQ(tag(same, "fc.weight", ""), std::string("0:fc.weight/rank0/") + same);
  }
  EXPECT_EQ(tag("attn_entropy", "core", "attention"), "0:core.attention:3/rank0/qkt");
  EXPECT_EQ(tag("stable_rank", "core", "linear"), "0:core.linear/rank0/sr");
  EXPECT_EQ(tag("router_similarity", "moe", ""), "0:moe/rank0/router_weight");
  EXPECT_EQ(tag("router_entropy", "moe", ""), "0:moe:3/rank0/router_logit");
}

TEST_F(MsprobeAnomaly, NamesOfAnyKindAndValuesThatAreNoNumbersStayValidJson) {
  Series odd;
  odd.kind = "grad_reduced";
  odd.name = std::string("a\"\\\n\x01\xff/b:c", 11);
  const SeriesId id = table.add(odd);
  const auto sink = opened();
  RecordBatch b;
  b.alerts.push_back(alert(id, 5, 7));
  b.alerts.back().value = std::numeric_limits<double>::quiet_NaN();
  b.alerts.back().expected = std::numeric_limits<double>::infinity();
  sink->write(b);
  sink->flush();
  const Json read = json();
  ASSERT_EQ(read.size(), 1u);
  const Json entry = read.begin().value();
  EXPECT_EQ(entry["call_id"], -1);  // no row of this window was seen
  EXPECT_NE(entry["message"].get<std::string>().find("current value nan, history mean inf."),
            std::string::npos);
}

TEST_F(MsprobeAnomaly, AlertsWithoutStatisticAreNotTheirs) {
  const auto sink = opened();
  RecordBatch b = batch(0, 0, 1);
  b.alerts.push_back(alert(weight, 0, 0, ""));
  sink->write(b);
  sink->close();
  EXPECT_EQ(content(path()), "{}");
}

TEST_F(MsprobeAnomaly, ARepeatReplacesItsEntry) {
  const auto sink = opened();
  RecordBatch b = batch(0, 0, 1);
  b.alerts.push_back(alert(weight, 0, 0));
  sink->write(b);
  b.alerts.back().count = 4096;
  sink->write(b);
  sink->close();
  ASSERT_EQ(json().size(), 1u);
  EXPECT_NE(content(path()).find("4,096 signals"), std::string::npos);
}

TEST_F(MsprobeAnomaly, WhatIsBeyondTheLimitIsCountedInALastEntry) {
  options.most_entries = 5;
  const auto sink = opened();
  RecordBatch b = batch(0, 0, 20);
  for (std::uint64_t seq = 0; seq < 20; ++seq) b.alerts.push_back(alert(weight, 0, seq));
  sink->write(b);
  sink->close();
  const Json read = json();
  ASSERT_EQ(read.size(), 6u);
  const Json last = std::prev(read.end()).value();
  EXPECT_EQ(last["call_id"], 5);
  EXPECT_EQ(last["message"].get<std::string>().find("This and 14 later"), 0u);
}

TEST_F(MsprobeAnomaly, AnEarlierStartsFileIsKeptBesideIt) {
  for (int start = 0; start < 3; ++start) {
    const auto sink = opened();
    EXPECT_EQ(content(path()), "{}");
    RecordBatch b = batch(0, 0, 1);
    b.alerts.push_back(alert(weight, start, 0));
    sink->write(b);
    sink->close();
  }
  opened()->close();  // finds nothing
  opened()->close();
  std::set<std::string> steps;
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path().parent_path())) {
    ++files;
    EXPECT_EQ(entry.path().filename().string().find("anomaly."), 0u);
    const Json read = Json::parse(content(entry.path()));
    for (const auto& [key, value] : read.items()) steps.insert(value["step"].dump());
  }
  EXPECT_EQ(files, 4);
  EXPECT_EQ(steps, (std::set<std::string>{"10", "11", "12"}));
}

TEST_F(MsprobeAnomaly, ADeletedDirectoryComesBackWithEverything) {
  const auto sink = opened();
  RecordBatch b = batch(0, 0, 2);
  b.alerts.push_back(alert(weight, 0, 0));
  sink->write(b);
  sink->flush();
  std::filesystem::remove_all(scratch.path() / "out");
  b.alerts = {alert(weight, 0, 1)};
  sink->write(b);
  sink->close();
  EXPECT_EQ(json().size(), 2u);
}

#if defined(TRAINMON_FAILPOINTS)
TEST_F(MsprobeAnomaly, AFullDiskDelaysEntriesAndLosesNone) {
  const auto sink = opened();
  RecordBatch b = batch(0, 0, 2);
  b.alerts.push_back(alert(weight, 0, 0));
  sink->write(b);
  sink->flush();
  const std::string before = content(path());
  set_failpoints("file.write=errno:28@1+");
  b.alerts = {alert(weight, 0, 1)};
  sink->write(b);
  EXPECT_THROW(sink->flush(), SinkError);
  EXPECT_EQ(content(path()), before);
  set_failpoints("");
  sink->close();
  EXPECT_EQ(json().size(), 2u);
}
#endif

// A process that rewrites the file as fast as it can, killed at any moment, again and again.
TEST_F(MsprobeAnomaly, AKillLeavesAWholeObject) {
  for (int round = 0; round < 20; ++round) {
    std::filesystem::remove_all(scratch.path() / "out");
    opened()->close();
    const pid_t child = ::fork();
    if (child == 0) {
      const auto sink = opened();
      for (std::uint64_t seq = 0;; ++seq) {
        RecordBatch b = batch(0, seq, 1);
        b.alerts.push_back(alert(weight, 0, seq));
        sink->write(b);
        if (seq % 20 == 0) sink->close();  // without waiting for its turn
      }
    }
    std::size_t seen = 0;
    for (int look = 0; look < 10 + round; ++look) {
      const Json read = Json::parse(content(path()));
      EXPECT_GE(read.size(), seen);
      seen = read.size();
    }
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    EXPECT_GE(json().size(), seen);
  }
}

// Flushed after every alert, rewriting must not grow with the square of the number of entries.
TEST_F(MsprobeAnomaly, RewritingTakesASmallShareOfTheTime) {
  const auto sink = opened();
  const auto start = std::chrono::steady_clock::now();
  for (std::uint64_t seq = 0; seq < 20000; ++seq) {
    RecordBatch b = batch(0, seq, 1);
    b.alerts.push_back(alert(weight, 0, seq));
    sink->write(b);
    sink->flush();
  }
  sink->close();
  // 20,000 rewritings of 5 MB on average would take minutes.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  EXPECT_EQ(json().size(), 20000u);
}

}  // namespace
}  // namespace trainmon
