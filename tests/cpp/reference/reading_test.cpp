// The examples of the C++ reference: a run read back.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "reference/example.h"
#include "scratch.h"
#include "trainmon/first_bad.h"
#include "trainmon/monitor.h"
#include "trainmon/read.h"

namespace trainmon {
namespace {

using testing::Floats;

// Rank 0 of two, three steps: the gradient has a NaN in the last.
void write_run(const std::filesystem::path& out) {
  Config config;
  config.out = out;
  config.alert_limit = 2.5;
  Identity identity;
  identity.world_size = 2;
  Monitor monitor(config, identity);
  const int optimizer = monitor.add_optimizer(0);
  Series series;
  series.kind = kind::kGradReduced;
  series.name = "weight";
  const SeriesId weight = monitor.add_series(series);
  for (const float value : {1.0f, 3.0f, NAN}) {
    DeclaredValue rate;
    rate.name = "lr";
    rate.number = 0.1;
    monitor.declare(Declared{.optimizer = optimizer, .group = 0, .values = {rate}});
    monitor.add_scalar("loss", 0.5);
    monitor.observe(weight, Floats({value}).view());
    Payload text;
    text.key.series = weight;
    text.bytes.resize(5);
    std::memcpy(text.bytes.data(), "hello", 5);
    monitor.add_payload(text);
    monitor.begin_attempt(optimizer);
    monitor.end_attempt(optimizer, Fate::taken, 1.0);
    monitor.seal(Moment::after_step);
  }
}

// example read.h: All that a run has
TEST(Reference, ReadRun) {
  const Scratch scratch;
  write_run(scratch.path());  // rank 0 of two: one gradient in three steps, the last one NaN
  const RunRows run = read_run(scratch.path());
  ASSERT_EQ(run.rows.size(), 3u);
  const ReadRow& last = run.rows.back();
  EXPECT_EQ(run.series[last.series].name, "weight");
  EXPECT_TRUE(is_bad(last));
  const RowPlace& place = last;
  EXPECT_EQ(place.step, 2);
  EXPECT_EQ(place.fate, Fate::taken);
  const ReadScalar& loss = run.scalars.at(0);
  EXPECT_EQ(loss.value, 0.5);
  const ReadDeclared& rate = run.declared.at(0);
  EXPECT_EQ(rate.value.name, "lr");
  const ReadPayload& text = run.payloads.at(0);
  EXPECT_EQ(text.payload.bytes.size(), 5u);
  const ReadAlert& alert = run.alerts.at(0);
  EXPECT_EQ(alert.alert.step, 1);
}

// example read.h: Some rows of a run, and what is missing
TEST(Reference, ReadSomeRows) {
  const Scratch scratch;
  write_run(scratch.path());
  ReadOptions options;
  options.kinds = {"grads"};
  options.first_step = 1;
  options.only_bad = true;
  const RunRows run = read_run(scratch.path(), options);
  EXPECT_EQ(run.rows.size(), 1u);
  const MissingRanks& missing = run.missing;
  EXPECT_EQ(missing_text(missing), "rank 1 of 2 is missing");
  EXPECT_EQ(ranks_text({0, 1, 2, 3, 7}), "0-3 7");
  for (const Damage& damage : run.damage) ADD_FAILURE() << damage.file << damage.what;
  for (const ReadGap& gap : run.gaps) ADD_FAILURE() << gap.gap.reason;
}

// example first_bad.h: Where a run first went wrong
TEST(Reference, FirstBad) {
  const Scratch scratch;
  write_run(scratch.path());
  const FirstBadOfRun answer = first_bad(scratch.path(), {});
  EXPECT_EQ(answer.rows, 3);
  ASSERT_TRUE(answer.found.has_value());
  const FirstBad& found = *answer.found;
  EXPECT_EQ(found.row.step, 2);
  EXPECT_EQ(found.series.name, "weight");
  EXPECT_EQ(found.ranks, std::vector<int>{0});
  const std::optional<FirstBad> same = first_bad(read_run(scratch.path()));
  EXPECT_EQ(same->row.seq, found.row.seq);
}

}  // namespace
}  // namespace trainmon
