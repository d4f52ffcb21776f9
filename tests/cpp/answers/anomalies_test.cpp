// Ranking alerts: the order against pairs written out one by one, damage, and alerts of a real log.
#include "answers/anomalies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "written_run.h"

namespace trainmon {
namespace {

void write_text(const std::filesystem::path& file, const std::string& text) {
  make_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << text;
}

std::string entry(int step, const std::string& tag, int call = 0, int pp = 0) {
  return R"({"rank": 0, "step": )" + std::to_string(step) + R"(, "micro_step": 0, "pp_stage": )" +
         std::to_string(pp) + R"(, "vpp_stage": 0, "call_id": )" + std::to_string(call) +
         R"(, "tag_name": ")" + tag + R"(", "message": "m", "group_mates": [0]})";
}

Anomaly made(std::int64_t step, std::int64_t micro, const char* task, std::int64_t vpp,
             std::int64_t pp, std::int64_t call) {
  Anomaly one;
  one.step = step;
  one.micro_step = micro;
  one.vpp_stage = vpp;
  one.pp_stage = pp;
  one.call_id = call;
  one.tag_name = std::string("0:fc/rank0/") + task;
  return one;
}

// Each comes before the next, for one reason.
std::vector<Anomaly> in_order() {
  return {
      made(1, 0, "actv", 0, 0, 7),
      made(1, 0, "qkt", 0, 0, 8),           // by call
      made(1, 0, "router_logit", 0, 1, 1),  // later pipeline stage
      made(1, 0, "sr", 0, 2, 0),
      made(1, 0, "router_weight", 1, 0, 0),  // later virtual stage
      made(1, 0, "actv_grad", 1, 1, 3),      // backward, from the last stages to the first
      made(1, 0, "post_grad", 1, 0, 1),
      made(1, 0, "acc_grad", 0, 2, 0),
      made(1, 0, "pre_grad", 0, 1, 9),
      made(1, 0, "exp_avg", 1, 0, 0),  // optimizer
      made(1, 0, "exp_avg_sq", 0, 3, 0),
      made(1, 0, "mg_direction", 0, 2, 4),
      made(1, 0, "param_origin", 0, 2, 5),
      made(1, 0, "param_updated", 0, 1, 0),
      made(1, 0, "anything_else", 0, 0, 0),
      made(1, 1, "actv", 0, 0, 0),  // next micro step
      made(1, 1, "actv", 0, 0, 1),
      made(2, 0, "actv", 0, 0, 0),  // next step
  };
}

// The same in msprobe's files: what it knows nothing of has stage -1.
std::vector<Anomaly> in_msprobe_order() {
  return {
      made(1, 0, "param_origin", 1, 0, 5),  // from the last stages to the first
      made(1, 0, "sr", 0, 2, 0),           made(1, 0, "anything_else", 0, 1, 0),
      made(1, 0, "qkt", 0, 0, 8),          made(1, 0, "actv", 0, 0, 7),
      made(1, 0, "actv", 0, 1, 1),         made(1, 0, "post_grad", 1, 0, 1),
      made(1, 0, "acc_grad", 0, 2, 0),     made(1, 0, "exp_avg", 1, 0, 0),
      made(1, 0, "exp_avg_sq", 0, 3, 0),   made(1, 1, "param_updated", 0, 0, 0),
      made(2, 0, "actv", 0, 0, 0),
  };
}

class AnomaliesInOrder : public testing::TestWithParam<AnomalyOrder> {};

TEST_P(AnomaliesInOrder, AreOrderedWhateverOrderTheyComeIn) {
  const bool is_run = GetParam() == AnomalyOrder::run;
  const std::vector<Anomaly> expected = is_run ? in_order() : in_msprobe_order();
  std::mt19937_64 random(4);
  for (int round = 0; round < 200; ++round) {
    std::vector<Anomaly> shuffled = expected;
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    sort_anomalies(shuffled, GetParam());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(shuffled[i].tag_name, expected[i].tag_name) << i;
      EXPECT_EQ(shuffled[i].call_id, expected[i].call_id) << i;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Orders, AnomaliesInOrder,
                         testing::Values(AnomalyOrder::run, AnomalyOrder::msprobe));

TEST(Anomalies, FilesOfAllRanksAreReadAndDamageIsNamed) {
  const Scratch scratch;
  const std::string good = entry(2, "0:a/rank0/actv"), early = entry(1, "0:b/rank1/post_grad");
  write_text(scratch.path() / "rank0/anomaly.json", "{\"a\": " + good + "}");
  write_text(scratch.path() / "rank1/anomaly.json",
             "{\"b\": " + early +
                 ", \"no object\": 3, \"no step\": {\"rank\": 0}, \"text step\": " +
                 entry(1, "x").replace(20, 1, "\"1\"") +
                 ", \"real\": " + std::string(entry(1, "x")).replace(20, 1, "1.5") + "}");
  write_text(scratch.path() / "rank2/anomaly.json", "{\"cut\": {\"rank\"");
  write_text(scratch.path() / "rank3/anomaly.json", "[1]");
  write_text(scratch.path() / "rank4/anomaly.20260101-000000.json", "{\"old\": " + good + "}");
  write_text(scratch.path() / "anomaly.json", "{\"not here\": " + good + "}");
  std::filesystem::create_directories(scratch.path() / "rank5/anomaly.json");
  const AnomalyList list = read_anomalies(scratch.path());
  ASSERT_EQ(list.entries.size(), 2u);
  EXPECT_EQ(list.entries[0].key, "b");
  EXPECT_EQ(list.entries[1].key, "a");
  EXPECT_EQ(list.files, 5);
  std::vector<std::string> what;
  for (const Damage& damage : list.damage) {
    what.push_back(damage.file.parent_path().filename().string() + " " + damage.what);
  }
  ASSERT_EQ(what.size(), 7u);
  const auto has = [&](const std::string& text) {
    return std::any_of(what.begin(), what.end(),
                       [&](const std::string& one) { return one.find(text) != std::string::npos; });
  };
  EXPECT_TRUE(has("rank1 entry \"no object\": not an object"));
  EXPECT_TRUE(has("rank1 entry \"no step\": no step"));
  EXPECT_TRUE(has("rank1 entry \"text step\": step is not an integer"));
  EXPECT_TRUE(has("rank1 entry \"real\": step is not an integer"));
  EXPECT_TRUE(has("rank2 "));
  EXPECT_TRUE(has("rank3 not a JSON object"));
  EXPECT_TRUE(has("rank5 "));
}

TEST(Anomalies, ChangedBytesAreReadOrNamedNeverMore) {
  const Scratch scratch;
  std::string good = "{";
  for (int i = 0; i < 5; ++i) {
    good += (i == 0 ? "\"k" : ", \"k") + std::to_string(i) + "\": " + entry(i, "0:a/rank0/actv");
  }
  good += "}";
  RandomRecords random(5);
  for (int round = 0; round < 500; ++round) {
    std::string text = good;
    for (std::uint64_t n = 1 + random.below(3); n > 0 && !text.empty(); --n) {
      const std::size_t at = random.below(text.size());
      if (random.below(3) == 0) {
        text.resize(at);
      } else {
        text[at] = static_cast<char>(random.below(256));
      }
    }
    write_text(scratch.path() / "rank0/anomaly.json", text);
    const AnomalyList list = read_anomalies(scratch.path());
    const auto object = nlohmann::json::parse(text, nullptr, false);
    const std::size_t expected = object.is_object() ? object.size() : 1;
    EXPECT_EQ(list.entries.size() + list.damage.size(), expected) << text;
    if (!object.is_object()) {
      EXPECT_TRUE(list.entries.empty());
    }
  }
}

TEST(Anomalies, OnlyTheStepsAskedFor) {
  const Scratch scratch;
  std::string text = "{";
  for (int i = 0; i < 6; ++i) {
    text += (i == 0 ? "\"k" : ", \"k") + std::to_string(i) + "\": " + entry(i, "0:a/rank0/actv");
  }
  write_text(scratch.path() / "rank0/anomaly.json", text + "}");
  const AnomalyList list = read_anomalies(scratch.path(), {4, 2, 77});
  ASSERT_EQ(list.entries.size(), 2u);
  EXPECT_EQ(list.entries[0].step, 2);
  EXPECT_EQ(list.entries[1].step, 4);
}

TEST(Anomalies, WhatWasWrittenReadsTheSame) {
  const Scratch scratch;
  std::vector<Anomaly> all = in_msprobe_order();
  for (std::size_t i = 0; i < all.size(); ++i) all[i].key = i < 2 ? "same" : std::to_string(i);
  all[0].message = "\"odd\" \xff\n";
  all[0].group_mates = {0, 4};
  make_directories(scratch.path() / "x");
  write_anomalies(scratch.path() / "x/anomaly.json", all);
  const AnomalyList list = read_anomalies(scratch.path());
  EXPECT_TRUE(list.damage.empty());
  ASSERT_EQ(list.entries.size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(list.entries[i].tag_name, all[i].tag_name);
    EXPECT_EQ(list.entries[i].group_mates, all[i].group_mates);
  }
  EXPECT_EQ(list.entries[0].key, "same");
  EXPECT_EQ(list.entries[1].key, "same_2");
}

TEST(Anomalies, AlertsOfARunGetStepAndCallFromTheLog) {
  const Scratch scratch;
  WrittenRank rank(scratch.path(), 1, 0, "\"start_steps\": [100]");
  const SeriesId weight = rank.add("grad_reduced", "w");
  const SeriesId activation = rank.add("actv", "fc");
  const auto tell = [&](SeriesId series, std::int64_t window, const char* stat) {
    Alert alert;
    alert.rule = "deviation";
    alert.stat = stat;
    alert.message = "far off";
    alert.key = rank.row(series, window).key;
    rank.batch().alerts.push_back(alert);
  };
  for (std::int64_t window = 0; window < 2; ++window) {
    rank.row(weight, window);
    tell(weight, window, "norm");
    tell(activation, window, "");
    rank.outcome(window, 100 + window);
    rank.write();
  }
  const AnomalyList list = read_anomalies(scratch.path());
  std::vector<std::pair<std::string, std::int64_t>> found;
  for (const Anomaly& one : list.entries) {
    found.emplace_back(one.key, one.rank);
    EXPECT_EQ(one.message, "deviation: far off");
  }
  EXPECT_EQ(found, (decltype(found){{"0:fc:0/rank1/actv_step_100_call_2", 1},
                                    {"0:w/rank1/post_grad_norm_step_100_call_1", 1},
                                    {"0:fc:0/rank1/actv_step_101_call_2", 1},
                                    {"0:w/rank1/post_grad_norm_step_101_call_1", 1}}));
}

TEST(Anomalies, WhatIsNeitherIsSaid) {
  const Scratch scratch;
  EXPECT_THROW(read_anomalies(scratch.path()), std::runtime_error);
  EXPECT_THROW(read_anomalies(scratch.path() / "absent"), std::runtime_error);
}

}  // namespace
}  // namespace trainmon
