// The page of a run that grows is the page that is made afresh of the same rows, byte for byte:
// whatever comes, in whatever pieces.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "model/histogram.h"
#include "read/compact.h"
#include "report/report.h"
#include "sinks/log_format.h"
#include "written_run.h"

namespace trainmon {
namespace {

namespace fs = std::filesystem;

ReportOptions live(std::int64_t max_bytes) {
  ReportOptions options;
  options.is_live = true;
  options.max_bytes = max_bytes;
  return options;
}

// A run and the page of it that is made again and again.
class Growing {
 public:
  explicit Growing(std::int64_t max_bytes = 400'000)
      : options_(live(max_bytes)), report_(run_.path(), options_) {}

  const fs::path& path() const { return run_.path(); }
  void expect_same() {
    std::string expected, error;
    std::int64_t rows = 0;
    try {
      const Report whole = report(path(), options_);
      expected = whole.html;
      rows = whole.rows;
    } catch (const std::exception& failed) {
      error = failed.what();
    }
    try {
      const Report grown = report_.make();
      ASSERT_EQ(error, "");
      EXPECT_EQ(grown.rows, rows);
      ASSERT_TRUE(grown.html == expected) << "at byte " << first_difference(grown.html, expected);
    } catch (const std::exception& failed) {
      ASSERT_EQ(failed.what(), error);
    }
  }
  // Of each row for the verdict and for the pictures.
  std::int64_t rows_read() const { return report_.rows_read(); }

 private:
  // Behind the head, where the digest stands.
  static std::string first_difference(const std::string& a, const std::string& b) {
    std::size_t at = std::min(a.find("id=\"report\""), b.find("id=\"report\""));
    while (at < a.size() && at < b.size() && a[at] == b[at]) ++at;
    const std::size_t from = at < 200 ? 0 : at - 200;
    return std::to_string(at) + ": " + a.substr(from, 400) +
           "\n instead of: " + b.substr(from, 400);
  }

  const Scratch run_;
  const ReportOptions options_;
  GrowingReport report_;
};

// One rank that trains: weights and gradients of some tensors in each step.
class Training {
 public:
  Training(const fs::path& run, int rank, int restart, std::int64_t first_step, std::uint64_t seed,
           std::size_t segment = 1 << 20)
      : rank_(run, rank, restart,
              "\"start_steps\": [" + std::to_string(first_step) + "], \"world_size\": 3", segment),
        step_(first_step),
        random_(seed) {
    for (const char* name : {"a", "b", "c"}) add(name);
  }
  std::int64_t step() const { return step_; }
  void go_back(std::int64_t steps) { step_ = std::max<std::int64_t>(0, step_ - steps); }
  void add(const std::string& name) {
    weights_.push_back(rank_.add("param_origin", name));
    gradients_.push_back(rank_.add("grad_reduced", name));
  }
  // What a step brings, in two batches; `is_skipped`: a loss scaler took it away.
  void take_step(bool is_skipped = false, bool is_bad = false) {
    for (const SeriesId one : weights_) row(one, window_);
    rank_.write();
    for (const SeriesId one : gradients_) row(one, window_);
    if (is_skipped || is_bad) rank_.row(gradients_[0], window_, WrittenRank::nan());
    if (below(3) == 0) scalar("loss", 1.0 / double(window_ + 1));
    if (below(9) == 0) scalar("grad_norm", value());
    if (below(7) == 0) declare("lr", value());
    const int attempt = attempt_;
    attempt_ = is_skipped ? attempt_ + 1 : 0;
    // The outcome comes with the next batch.
    if (below(4) == 0) rank_.write();
    rank_.outcome(window_, step_, is_skipped ? Fate::skipped : Fate::taken, attempt);
    if (!is_skipped) ++step_;
    ++window_;
    if (below(3) == 0) rank_.write();
  }
  // A step that is not over.
  void begin_step() {
    for (const SeriesId one : weights_) row(one, window_);
    rank_.write();
  }
  // Of a window that is over.
  void late_row(std::int64_t windows) {
    if (window_ > windows) row(gradients_.back(), window_ - windows);
    rank_.write();
  }
  void lose_rows() {
    rank_.batch().gaps.push_back({"queue_full", 3, seq(), seq() + 2});
    rank_.write();
  }
  void histogram() {
    Histogram one;
    one.low = -1.0;
    one.high = 1.0;
    one.bins = {1, 2, std::int64_t(below(50)), 4};
    Payload payload;
    payload.key = {gradients_[0], 0, window_, 0, 0, 0};
    payload.type = PayloadType::histogram;
    payload.bytes = histogram_bytes(one);
    rank_.batch().payloads.push_back(payload);
    rank_.write();
  }
  void stop() { rank_.write_health(1, 1, 0, true); }
  void write() { rank_.write(); }
  std::uint64_t below(std::uint64_t most) { return random_() % most; }

 private:
  double value() { return 0.5 + double(below(1000)) / 1000.0; }
  std::uint64_t seq() const { return std::uint64_t(window_) * 1000; }
  void row(SeriesId series, std::int64_t window) {
    Row& row = rank_.row(series, window, WrittenRank::one(value()));
    if (below(200) == 0) row.key.flags |= flag::kNotReady;
  }
  void scalar(const std::string& name, double value) {
    rank_.batch().scalars.push_back({name, window_, seq(), value});
  }
  void declare(const std::string& name, double number) {
    Declared declared;
    declared.window = window_;
    DeclaredValue& one = declared.values.emplace_back();
    one.name = name;
    one.type = DeclaredValue::Type::number;
    one.number = number;
    rank_.batch().declared.push_back(declared);
  }

  WrittenRank rank_;
  std::vector<SeriesId> weights_, gradients_;
  std::int64_t step_, window_ = 0;
  int attempt_ = 0;
  std::mt19937_64 random_;
};

TEST(GrowingReport, StepAfterStepOnlyWhatIsNewIsRead) {
  Growing run;
  Training rank(run.path(), 0, 0, 0, 1);
  for (int i = 0; i < 200; ++i) rank.take_step();
  run.expect_same();
  for (int i = 0; i < 20; ++i) {
    rank.take_step();
    run.expect_same();
    EXPECT_LT(run.rows_read(), 100);
  }
  rank.begin_step();
  run.expect_same();
  rank.stop();
  run.expect_same();
  EXPECT_LT(run.rows_read(), 100);
}

TEST(GrowingReport, SeveralRanksAtTheirOwnPace) {
  Growing run;
  std::vector<std::unique_ptr<Training>> ranks;
  for (int i = 0; i < 3; ++i) ranks.push_back(std::make_unique<Training>(run.path(), i, 0, 0, 7));
  for (int i = 0; i < 60; ++i) {
    for (auto& rank : ranks) rank->take_step();
  }
  run.expect_same();
  for (int i = 0; i < 20; ++i) {
    for (auto& rank : ranks) {
      if (rank->below(2) == 0) rank->take_step();
    }
    run.expect_same();
    EXPECT_LT(run.rows_read(), 1500);
  }
}

TEST(GrowingReport, ColumnsThatStepsShare) {
  Growing run(330'000);
  Training rank(run.path(), 0, 0, 0, 3);
  for (int i = 0; i < 8; ++i) {
    for (int step = 0; step < 900; ++step) rank.take_step();
    run.expect_same();
  }
  EXPECT_LT(run.rows_read(), 13'000);
}

TEST(GrowingReport, RowsInPiecesThatEndWithinARecord) {
  Scratch whole;
  {
    Training rank(whole.path(), 0, 0, 0, 5);
    for (int i = 0; i < 40; ++i) rank.take_step(i % 9 == 4);
  }
  const fs::path from = rank_path(whole.path(), 0, 0) / log_format::segment_name(0);
  std::string bytes(fs::file_size(from), '\0');
  std::ifstream(from, std::ios::binary).read(bytes.data(), std::streamsize(bytes.size()));
  Growing run;
  const fs::path to = rank_path(run.path(), 0, 0);
  fs::create_directories(to);
  fs::copy_file(from.parent_path() / "run.json", to / "run.json");
  std::mt19937_64 random(11);
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t piece = std::min<std::size_t>(bytes.size() - at, 1 + random() % 900);
    std::ofstream(to / log_format::segment_name(0), std::ios::binary | std::ios::app)
        .write(bytes.data() + at, std::streamsize(piece));
    at += piece;
    run.expect_same();
  }
}

TEST(GrowingReport, AVerdictAppearsAndStays) {
  Growing run;
  Training rank(run.path(), 0, 0, 0, 9);
  for (int i = 0; i < 30; ++i) rank.take_step();
  run.expect_same();
  rank.take_step(false, true);
  for (int i = 0; i < 20; ++i) {
    run.expect_same();
    rank.take_step(i % 6 == 0);
  }
  run.expect_same();
}

TEST(GrowingReport, ARestartGoesThroughStepsAgain) {
  Growing run;
  {
    Training rank(run.path(), 0, 0, 0, 2);
    for (int i = 0; i < 40; ++i) rank.take_step();
    rank.begin_step();
  }
  run.expect_same();
  Training rank(run.path(), 0, 1, 25, 3);
  run.expect_same();
  for (int i = 0; i < 40; ++i) {
    rank.take_step();
    run.expect_same();
  }
  EXPECT_LT(run.rows_read(), 100);  // it is past the older steps
}

TEST(GrowingReport, AnotherRunOfTheSameName) {
  Growing run;
  for (int i = 0; i < 3; ++i) {
    Training rank(run.path(), 0, 0, 0, 20 + std::uint64_t(i));
    for (int step = 0; step < 20; ++step) rank.take_step();
    run.expect_same();
    fs::remove_all(rank_path(run.path(), 0, 0).parent_path());
    run.expect_same();  // what is said of no run is the same, too
  }
}

TEST(GrowingReport, CompactedAndDamagedLogs) {
  Growing run;
  Training rank(run.path(), 0, 0, 0, 4, 2000);
  for (int i = 0; i < 60; ++i) rank.take_step();
  run.expect_same();
  compact(run.path(), [](std::int64_t, std::int64_t) { return true; });
  rank.take_step();
  run.expect_same();
  EXPECT_LT(run.rows_read(), 100);
  {
    std::fstream file(rank_path(run.path(), 0, 0) / log_format::segment_name(1),
                      std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(300);
    file.write("damage", 6);
  }
  rank.take_step();
  run.expect_same();
  fs::remove(rank_path(run.path(), 0, 0) / log_format::segment_name(0));
  run.expect_same();
  rank.take_step();
  run.expect_same();
}

// Whatever comes, in any order.
// Six seconds each under the address sanitizer, which looks for something else.
#if defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kSeeds = 4;
#else
constexpr std::uint64_t kSeeds = 12;
#endif

TEST(GrowingReport, WhateverComes) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t most) { return random() % most; };
    Growing run(below(2) == 0 ? 320'000 : 1'000'000);
    std::map<int, std::unique_ptr<Training>> ranks;
    std::map<int, int> restarts;
    const auto begin = [&](int rank, std::int64_t step) {
      const std::size_t segment = below(2) == 0 ? 1500 : 1 << 20;
      ranks[rank] = std::make_unique<Training>(run.path(), rank, restarts[rank]++, step,
                                               below(3) == 0 ? 1 : random(), segment);
    };
    begin(0, 0);
    for (int i = 0; i < 120; ++i) {
      const std::uint64_t what = below(100);
      const int number = int(below(3));
      if (!ranks.contains(number)) {
        if (what < 10) begin(number, ranks.begin()->second->step());
        continue;
      }
      Training& rank = *ranks[number];
      if (what < 60) {
        for (auto& [other, one] : ranks) one->take_step(below(15) == 0, below(150) == 0);
      } else if (what < 70) {
        rank.take_step();
      } else if (what < 75) {
        rank.begin_step();
      } else if (what < 79) {
        rank.late_row(std::int64_t(below(14)));
      } else if (what < 81) {
        rank.go_back(std::int64_t(below(8)));
      } else if (what < 83) {
        begin(number, std::max<std::int64_t>(0, rank.step() - std::int64_t(below(10))));
      } else if (what < 84) {
        rank.lose_rows();
      } else if (what < 85) {
        rank.add("new " + std::to_string(i));
      } else if (what < 86 && seed % 3 == 0) {
        rank.histogram();
      } else if (what < 88) {
        compact(run.path(), [](std::int64_t, std::int64_t) { return true; });
      } else if (what < 89) {
        rank.stop();
      }
      if (below(4) == 0) {
        run.expect_same();
        if (HasFatalFailure()) return;
      }
    }
    run.expect_same();
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace trainmon
