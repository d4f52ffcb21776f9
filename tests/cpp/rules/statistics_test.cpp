// Rules of statistics: what fires against numbers worked out by hand, how repeats are told, and
// that what they remember is bounded.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <set>

#include "records.h"
#include "trainmon/rule.h"

namespace trainmon {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// A tensor of one element.
RowState one(double value) {
  RowState s;
  s.count = 1;
  if (std::isnan(value)) {
    s.nans = 1;
  } else if (std::isinf(value)) {
    (value > 0 ? s.pos_infs : s.neg_infs) = 1;
  } else {
    s.sum = s.mean = s.min = s.max = value;
    s.sum_sq = value * value;
    s.absmax = std::abs(value);
  }
  return s;
}

// Feeds values one batch at a time, each in a window of its own.
class Feed {
 public:
  explicit Feed(std::unique_ptr<Rule> rule) : rule_(std::move(rule)) {
    for (int i = 0; i < 6; ++i) {
      Series series;
      series.kind = "grad_reduced";
      series.name = "p" + std::to_string(i);
      table_.add(series);
    }
  }

  std::vector<Alert> operator()(RowState state, SeriesId series = 0, int accum = 0, int call = 0,
                                std::uint32_t flags = 0) {
    RecordBatch batch;
    batch.rows.push_back({{series, flags, window_++, accum, call, next_seq_++}, state});
    return look(batch);
  }
  std::vector<Alert> operator()(double value, SeriesId series = 0, int accum = 0, int call = 0) {
    return (*this)(one(value), series, accum, call);
  }
  std::vector<Alert> look(const RecordBatch& batch) {
    std::vector<Alert> alerts;
    rule_->look(batch, table_, alerts);
    return alerts;
  }
  void replace(std::unique_ptr<Rule> rule) {
    rule->keep_history_of(*rule_);
    rule_ = std::move(rule);
  }
  std::uint64_t next_seq() { return next_seq_++; }

 private:
  std::unique_ptr<Rule> rule_;
  ListedSeries table_;
  std::int64_t window_ = 0;
  std::uint64_t next_seq_ = 0;
};

constexpr Telling kEvery{true, 1000};

Feed deviation(double by, int warmup, std::vector<Stat> stats = {Stat::mean}) {
  return Feed(make_deviation_rule({by, std::move(stats), warmup}, kEvery));
}

TEST(DeviationRule, TheMeanOfTheHistoryIsTakenBeforeTheValueEnters) {
  Feed feed = deviation(0.2, 0);
  EXPECT_TRUE(feed(1.0).empty());
  std::vector<Alert> alerts = feed(2.0);
  ASSERT_EQ(alerts.size(), 1u);
  EXPECT_EQ(alerts[0].expected, 1.0);
  alerts = feed(2.0);
  ASSERT_EQ(alerts.size(), 1u);
  EXPECT_NEAR(alerts[0].expected, 1.01, 1e-15);
  EXPECT_EQ(alerts[0].rule, "deviation");
  EXPECT_EQ(alerts[0].stat, "mean");
  EXPECT_EQ(alerts[0].value, 2.0);
  EXPECT_NE(alerts[0].message.find("grad_reduced p0: mean 2 is above"), std::string::npos);
}

// Histories are of sizes, and sizes are compared: the sentence must be true as it stands.
TEST(DeviationRule, TheSentenceIsTrueOfNegativeValues) {
  const auto said = [](double history, double value, Stat stat) {
    Feed feed = deviation(0.5, 0, {stat});
    feed(history);
    const std::vector<Alert> alerts = feed(value);
    return alerts.size() == 1 ? alerts[0].message : std::string();
  };
  EXPECT_EQ(
      said(-1.2, -4.8, Stat::mean),
      "grad_reduced p0: mean -4.8 has a size above the mean size of its history, 1.2, by more "
      "than 50 %");
  EXPECT_EQ(
      said(-4, -1, Stat::min),
      "grad_reduced p0: min -1 has a size below the mean size of its history, 4, by more than "
      "50 %");
  EXPECT_EQ(said(-1, 2, Stat::max),
            "grad_reduced p0: max 2 is above the mean size of its history, 1, by more than 50 %");
  EXPECT_EQ(said(1, 2, Stat::absmax),
            "grad_reduced p0: absmax 2 is above the mean of its history, 1, by more than 50 %");
}

TEST(LimitRule, TheSentenceIsTrueOfNegativeValues) {
  Feed feed(make_limit_rule({3.0, {Stat::mean}}, kEvery));
  feed(-1);
  const std::vector<Alert> alerts = feed(-4.8);
  ASSERT_EQ(alerts.size(), 1u);
  EXPECT_EQ(alerts[0].message,
            "grad_reduced p0: mean -4.8 has a size above the limit 3; the mean size of its history "
            "is 1");
}

TEST(DeviationRule, FiresBeyondTheShareOnBothSides) {
  struct Case {
    double history, value, by;
    bool fires;
  };
  for (const Case& c : std::vector<Case>{{12, 16, 0.2, true},
                                         {12, 14.39, 0.2, false},  // 12 * 1.2, not beyond
                                         {12, 9.61, 0.2, false},   // above 12 * 0.8
                                         {12, 9.59, 0.2, true},
                                         {12, -16, 0.2, true},  // sizes are compared
                                         {-12, 12, 0.2, false},
                                         {0, -1, 0.2, true},
                                         {0, 0, 0.2, false},
                                         {0, 1e-300, 0.2, true},
                                         {12, 0, 0.99, true},
                                         {12, 0, 1.0, false},  // never below with 1 or more
                                         {12, 0, 3.0, false},
                                         {12, 49, 3.0, true},
                                         {1e308, 1e308, 5.0, false}}) {
    Feed feed = deviation(c.by, 0);
    EXPECT_TRUE(feed(c.history).empty());
    EXPECT_EQ(feed(c.value).size(), c.fires ? 1u : 0u)
        << c.history << " then " << c.value << " at " << c.by;
  }
}

TEST(DeviationRule, WaitsForItsWarmUpOfFiniteValues) {
  Feed feed = deviation(0.2, 3);
  for (const double value : {0.0, kNan, 5.0, kInf}) EXPECT_TRUE(feed(value).empty()) << value;
  EXPECT_TRUE(feed(100.0).empty());  // the third finite value: two are known
  EXPECT_EQ(feed(100.0).size(), 1u);
}

TEST(DeviationRule, ANanNeitherFiresNorPoisonsTheHistory) {
  Feed feed = deviation(0.5, 0);
  feed(1.0);
  EXPECT_TRUE(feed(kNan).empty());
  EXPECT_TRUE(feed(kInf).empty());
  EXPECT_TRUE(feed(-kInf).empty());
  const std::vector<Alert> alerts = feed(100.0);
  ASSERT_EQ(alerts.size(), 1u);
  EXPECT_EQ(alerts[0].expected, 1.0);
}

TEST(DeviationRule, HistoriesBelongToSeriesAccumCallAndStatistic) {
  Feed feed = deviation(0.5, 0, {Stat::mean, Stat::zeros});
  feed(1.0);
  EXPECT_TRUE(feed(100.0, 1).empty());
  EXPECT_TRUE(feed(100.0, 0, 1).empty());
  EXPECT_TRUE(feed(100.0, 0, 0, 1).empty());
  EXPECT_EQ(feed(100.0).size(), 1u);
  // Far beyond, they share, so that no number of calls grows the memory without bound.
  feed(1.0, 0, 0, 1000);
  EXPECT_EQ(feed(100.0, 0, 0, 1000000).size(), 1u);
}

// 262,144 histories, then one more per series: that is all the memory there is.
TEST(DeviationRule, KeepsABoundedNumberOfHistories) {
  Feed feed = deviation(0.5, 0);
  RecordBatch batch;
  for (SeriesId series = 0; series < 4; ++series) {
    for (int place = 0; place < 1 << 16; ++place) {
      batch.rows.push_back({{series, 0, 0, place >> 8, place & 255, 0}, one(1.0)});
    }
  }
  EXPECT_TRUE(feed.look(batch).empty());
  EXPECT_TRUE(feed(1.0, 4, 0, 0).empty());
  EXPECT_EQ(feed(100.0, 4, 7, 3).size(), 1u);  // shared within the series
  EXPECT_TRUE(feed(100.0, 5, 0, 0).empty());   // and with no other
  EXPECT_EQ(feed(100.0, 2, 9, 9).size(), 1u);  // those that were known stay
}

// Against the definition in its plainest form, kept in a map.
TEST(DeviationRule, AgreesWithTheDefinitionOnRandomValues) {
  std::mt19937_64 random(11);
  const auto below = [&](std::uint64_t n) { return random() % n; };
  for (int trial = 0; trial < 50; ++trial) {
    const double by = std::vector<double>{0.01, 0.1, 0.5, 2.0}[below(4)];
    const int warmup = static_cast<int>(below(5));
    Feed feed = deviation(by, warmup);
    std::map<std::tuple<SeriesId, int, int>, std::pair<double, int>> known;
    double size = 1.0;
    for (int i = 0; i < 200; ++i) {
      size *= std::exp(std::normal_distribution<double>(0.0, 0.3)(random));
      const double value = below(20) == 0 ? kNan : below(20) == 0 ? 0.0 : -size;
      const auto series = static_cast<SeriesId>(below(2));
      const int accum = static_cast<int>(below(2)), call = static_cast<int>(below(2));
      auto& [mean, count] = known[{series, accum, call}];
      const double x = std::abs(value);
      bool fires = false;
      if (!std::isnan(x)) {
        fires = count >= std::max(warmup, 1) && (x > mean * (1 + by) || x < mean * (1 - by));
        mean = count++ == 0 ? x : 0.99 * mean + 0.01 * x;
      }
      EXPECT_EQ(feed(value, series, accum, call).size(), fires ? 1u : 0u);
    }
  }
}

TEST(LimitRule, FiresForWhatIsNotFiniteAndBeyondTheLimit) {
  Feed plain(make_limit_rule({std::nullopt, {Stat::mean}}, kEvery));
  EXPECT_TRUE(plain(1e300).empty());
  EXPECT_EQ(plain(kNan).size(), 1u);
  EXPECT_EQ(plain(kInf).size(), 1u);
  EXPECT_EQ(plain(-kInf).size(), 1u);
  Feed limited(make_limit_rule({10.0, {Stat::mean}}, kEvery));
  EXPECT_TRUE(limited(10.0).empty());
  EXPECT_EQ(limited(10.5).size(), 1u);
  const std::vector<Alert> alerts = limited(-11.0);
  ASSERT_EQ(alerts.size(), 1u);
  EXPECT_EQ(alerts[0].rule, "limit");
  EXPECT_EQ(alerts[0].value, -11.0);
  EXPECT_NEAR(alerts[0].expected, 0.99 * 10 + 0.01 * 10.5, 1e-12);
  EXPECT_EQ(limited(kNan).size(), 1u);
}

TEST(LimitRule, LooksAtEveryStatisticItWasGivenCountsIncluded) {
  Feed feed(make_limit_rule({3.0, {Stat::nans, Stat::max, Stat::zeros}}, kEvery));
  RowState state;
  state.count = 10;
  state.nans = 4;
  const std::vector<Alert> alerts = feed(state);
  ASSERT_EQ(alerts.size(), 2u);
  EXPECT_EQ(alerts[0].stat, "nans");
  EXPECT_EQ(alerts[0].value, 4.0);
  EXPECT_EQ(alerts[1].stat, "max");
  EXPECT_TRUE(std::isnan(alerts[1].value));
}

TEST(StatisticsRules, RowsThatWereNotMeasuredAreNotJudged) {
  Feed feed(make_limit_rule({std::nullopt, {Stat::mean}}, kEvery));
  EXPECT_TRUE(feed(RowState{}).empty());  // no elements: the mean is NaN
  EXPECT_TRUE(feed(one(kNan), 0, 0, 0, flag::kNotReady).empty());
  EXPECT_EQ(feed(one(kNan)).size(), 1u);
}

TEST(FirstOfRule, TheFirstThatFiresIsToldAndNoneHidesAnother) {
  const DeviationRule turbulence{0.5, {Stat::norm, Stat::mean}, 0, "AnomalyTurbulence"};
  const LimitRule nan{50.0, {Stat::norm, Stat::max}, "AnomalyNan"};
  Feed nan_first(make_first_of_rule({nan, turbulence}, kEvery));
  Feed turbulence_first(make_first_of_rule({turbulence, nan}, kEvery));
  nan_first(1.0);
  turbulence_first(1.0);
  using Found = std::set<std::pair<std::string, std::string>>;
  const auto found = [](const std::vector<Alert>& alerts) {
    Found pairs;
    for (const Alert& alert : alerts) pairs.insert({alert.rule, alert.stat});
    EXPECT_EQ(pairs.size(), alerts.size());
    return pairs;
  };
  EXPECT_EQ(found(nan_first(100.0)),
            (Found{{"AnomalyNan", "norm"}, {"AnomalyNan", "max"}, {"AnomalyTurbulence", "mean"}}));
  EXPECT_EQ(
      found(turbulence_first(100.0)),
      (Found{{"AnomalyTurbulence", "norm"}, {"AnomalyTurbulence", "mean"}, {"AnomalyNan", "max"}}));
  EXPECT_EQ(found(turbulence_first(10.0)),
            (Found{{"AnomalyTurbulence", "norm"}, {"AnomalyTurbulence", "mean"}}));
}

TEST(StatisticsRules, RepeatsAreToldWhenTheirNumberHasDoubled) {
  Feed feed(make_limit_rule({1.0, {Stat::mean, Stat::max}}));
  std::vector<std::int64_t> counts;
  for (int i = 0; i < 100; ++i) {
    for (const Alert& alert : feed(5.0, 1)) {
      EXPECT_EQ(alert.key.seq, 0u);  // of the first
      if (alert.stat == "max") counts.push_back(alert.count);
    }
  }
  EXPECT_EQ(counts, (std::vector<std::int64_t>{1, 2, 4, 8, 16, 32, 64}));
  EXPECT_EQ(feed(5.0, 2).size(), 2u);  // another series
}

TEST(StatisticsRules, EveryOccurrenceIsToldUpToAStepsShareTheRestIsCounted) {
  Feed feed(make_limit_rule({1.0, {Stat::mean}}, {true, 10}));
  const auto storm = [&](std::int64_t window, int rows) {
    RecordBatch batch;
    for (int i = 0; i < rows; ++i) {
      batch.rows.push_back({{0, 0, window, 0, i, feed.next_seq()}, one(5.0)});
    }
    return feed.look(batch);
  };
  std::vector<Alert> alerts = storm(0, 4);
  EXPECT_EQ(alerts.size(), 4u);
  alerts = storm(0, 9);
  ASSERT_EQ(alerts.size(), 7u);  // six more, and one for three
  EXPECT_EQ(alerts[5].count, 1);
  EXPECT_EQ(alerts[6].count, 3);
  EXPECT_EQ(alerts[6].key.seq, 10u);
  EXPECT_NE(alerts[6].message.find("2 more"), std::string::npos);
  alerts = storm(0, 1000);
  ASSERT_EQ(alerts.size(), 1u);
  EXPECT_EQ(alerts[0].count, 1000);
  EXPECT_EQ(storm(1, 10).size(), 10u);  // the next step has room again
  EXPECT_EQ(storm(0, 1).size(), 1u);    // a late row of the step before takes of the same room
}

// As when the configuration of alerts changes while a run goes on.
TEST(StatisticsRules, ANewRuleKnowsTheHistoryOfThoseItReplaces) {
  const auto other = [](std::vector<Stat> stats) {
    return make_deviation_rule({0.2, std::move(stats), 3}, kEvery);
  };
  Feed feed(make_limit_rule({1e9, {Stat::max, Stat::mean}}, kEvery));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(feed(1.0).empty());
  EXPECT_TRUE(Feed(other({Stat::mean}))(5.0).empty()) << "without a history it does not fire";
  feed.replace(other({Stat::norm, Stat::mean}));
  const std::vector<Alert> alerts = feed(5.0);
  ASSERT_EQ(alerts.size(), 1u) << "nothing is known of the norm";
  EXPECT_EQ(alerts[0].stat, "mean");
  EXPECT_EQ(alerts[0].expected, 1.0);
  EXPECT_TRUE(feed(5.0, 1).empty()) << "nor of another series";
}

TEST(StatisticsRules, WrongArgumentsAreRefused) {
  EXPECT_THROW(make_deviation_rule({-0.1, {Stat::norm}}), std::invalid_argument);
  EXPECT_THROW(make_deviation_rule({kNan, {Stat::norm}}), std::invalid_argument);
  EXPECT_THROW(make_deviation_rule({0.5, {}}), std::invalid_argument);
  EXPECT_THROW(make_deviation_rule({0.5, {Stat::norm}, -1}), std::invalid_argument);
  EXPECT_THROW(make_limit_rule({kNan, {Stat::norm}}), std::invalid_argument);
  EXPECT_THROW(make_limit_rule({1.0, {}}), std::invalid_argument);
  EXPECT_THROW(make_first_of_rule({}), std::invalid_argument);
}

}  // namespace
}  // namespace trainmon
