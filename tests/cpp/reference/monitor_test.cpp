// The examples of the C++ reference: the monitor of a rank.
#include "trainmon/monitor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reference/example.h"
#include "scratch.h"
#include "stats/check.h"
#include "stats/update.h"

namespace trainmon {
namespace {

using testing::Floats;

Series gradient_of(const std::string& name) {
  Series series;
  series.kind = kind::kGradReduced;
  series.name = name;
  return series;
}

// example identity.h: Who this process is
TEST(Reference, Identity) {
  Identity identity = identity_from_environment();  // RANK, WORLD_SIZE, ... of a launcher
  identity.run_id = "today";
  EXPECT_LT(identity.rank, identity.world_size);
}

// example monitor.h: Steps and rows
TEST(Reference, StepsAndRows) {
  const Scratch scratch;
  Config config;
  config.out = scratch.path();
  Monitor monitor(config, Identity());
  EXPECT_EQ(monitor.config().out, config.out);
  EXPECT_TRUE(std::filesystem::exists(monitor.run().directory));
  const int optimizer = monitor.add_optimizer(0);
  monitor.set_start_step(optimizer, 100);  // the optimizer was loaded from a checkpoint
  const SeriesId weight = monitor.add_series(gradient_of("weight"));
  const Floats values({3, 4});

  EXPECT_EQ(monitor.next_accum(optimizer), 0);
  EXPECT_EQ(monitor.on_backward(optimizer, 1), 0);  // the first backward of the window
  EXPECT_EQ(monitor.accum(optimizer), 0);
  EXPECT_TRUE(monitor.recording(optimizer));
  EXPECT_EQ(monitor.observe(weight, values.view()), Observed::recorded);
  monitor.begin_attempt(optimizer);
  monitor.end_attempt(optimizer, Fate::taken, 1.0);
  monitor.seal(Moment::after_step);
  EXPECT_TRUE(monitor.settle(10.0));

  EXPECT_EQ(monitor.window(optimizer), 1);  // of the step that is next
  EXPECT_EQ(monitor.step(optimizer), 101);
  EXPECT_EQ(monitor.step_of(optimizer, 0), 100);
  const std::vector<Row> rows = monitor.latest();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(derive(Stat::norm, rows[0].state), 5.0);
  EXPECT_EQ(monitor.series().at(rows[0].key.series).name, "weight");
  EXPECT_TRUE(monitor.flush(10.0));
  const Health health = monitor.stop();
  EXPECT_EQ(health.rows_produced, 1);
  const SinkHealth& log = health.sinks.at(0);
  EXPECT_EQ(log.rows_written, 1);
}

// example monitor.h: What becomes of a window
TEST(Reference, Windows) {
  const Scratch scratch;
  Config config;
  config.out = scratch.path();
  Monitor monitor(config, Identity());
  const int optimizer = monitor.add_optimizer(0);
  monitor.begin_attempt(optimizer);
  monitor.end_attempt(optimizer, std::nullopt, 1024.0);  // a loss scaler knows, later
  monitor.decide(optimizer, 0, Fate::skipped, 1024.0);
  EXPECT_EQ(monitor.step(optimizer), 0);                  // tried again
  monitor.abandon_window(optimizer, Fate::skipped, 1.0);  // gradients were cleared
  EXPECT_EQ(monitor.window(optimizer), 2);
}

// example monitor.h: Addresses, scales, inputs and the step of a formula
TEST(Reference, WaysToObserve) {
  const Scratch scratch;
  Config config;
  config.out = scratch.path();
  config.checks = true;
  Monitor monitor(config, Identity());
  monitor.add_optimizer(0);
  const SeriesId weight = monitor.add_series(gradient_of("weight"));
  const SeriesId bias = monitor.add_series(gradient_of("bias"));
  const Floats values({8, 0});
  // Backward 1 of the window 0, call 2 of the module.
  EXPECT_EQ(monitor.observe_at(weight, values.view(), 0, 1, 2), Observed::recorded);
  // One block in 16 of a large tensor; this one is read whole.
  EXPECT_EQ(monitor.observe_sample(weight, values.view(), 0, 1, 2, 16), Observed::recorded);
  // Another row of the same elements, which are not read again.
  Reading reading;
  monitor.observe_sample(weight, values.view(), 0, 1, 3, 0, 0, &reading);
  EXPECT_TRUE(reading.is_there());
  EXPECT_EQ(monitor.observe_again(bias, values.view(), 0, 1, 3, 0, reading), Observed::recorded);
  EXPECT_EQ(monitor.observe_scaled(weight, values.view(), 8.0), Observed::recorded);
  const SeriesId series[] = {weight, bias};
  const TensorView tensors[] = {values.view(), values.view()};
  Observed done[2];
  monitor.observe_all(series, tensors, done);
  EXPECT_EQ(done[1], Observed::recorded);

  Series input = gradient_of("");
  input.kind = "input";
  Series entropy = input;
  entropy.kind = "input_entropy";
  const SeriesId ids = monitor.add_series(input);
  const SeriesId spread = monitor.add_series(entropy);
  EXPECT_EQ(monitor.observe_input(ids, spread, values.view(), 0, 0, 0), Observed::recorded);

  Series update = gradient_of("weight");
  update.kind = kind::kUpdate;
  const UpdateFormula formula = plain_update(values.view());  // of SGD (stats/update.h)
  EXPECT_EQ(monitor.observe_update(monitor.add_series(update), formula), Observed::recorded);
}

// example monitor.h: Tensors of a device
TEST(Reference, LateRows) {
  const Scratch scratch;
  Config config;
  config.out = scratch.path();
  config.sinks = {"memory"};
  config.checks = true;
  Monitor monitor(config, Identity());
  monitor.add_optimizer(0);
  const SeriesId weight = monitor.add_series(gradient_of("weight"));
  // "": kernels of this build measure tensors of device 0, two of 4 bytes at a time.
  const std::string why_not = monitor.reserve_device(0, 2, 8);
  const Floats values({3, 4});
  TensorView elsewhere = values.view();
  elsewhere.device = Device::other;
  EXPECT_EQ(monitor.observe(weight, elsewhere), Observed::elsewhere);
  // So the caller measures, and its values come when the device has them.
  monitor.add_late_row(weight, DType::float32, {}, 0, 0, 0, 0);
  const std::int64_t ticket = monitor.seal_late();
  const RowState state = measure(values.view());
  // Of a gradient there is a check, here of a whole tensor (stats/check.h).
  std::optional<RowCheck> check;
  if (const auto first = monitor.checked_from(weight, values.view())) {
    Check taken;
    measure(values.view(), *first, taken);
    check = row_check(taken);
  }
  monitor.fulfil(ticket, {&state, 1}, {&check, 1});
  EXPECT_TRUE(monitor.settle(10.0));
  std::int64_t rows = 0;
  std::size_t checks = 0;
  for (const RecordBatch& batch : monitor.memory()) {
    rows += batch.row_count();
    checks += batch.checks.size();
  }
  EXPECT_EQ(rows, 1);
  EXPECT_EQ(checks, 1u);
}

// example monitor.h: Scalars, declared values, payloads and a probe
TEST(Reference, BesideRows) {
  const Scratch scratch;
  Config config;
  config.out = scratch.path();
  Monitor monitor(config, Identity());
  const int optimizer = monitor.add_optimizer(0);
  const SeriesId weight = monitor.add_series(gradient_of("weight"));
  monitor.add_scalar("loss", NAN);
  EXPECT_EQ(monitor.bad_losses(), 1);
  monitor.drop_scalar();
  EXPECT_EQ(monitor.health().scalars_dropped.at("no_number"), 1);
  DeclaredValue rate;
  rate.name = "lr";
  rate.number = 0.1;
  monitor.declare(Declared{.optimizer = optimizer, .group = 0, .values = {rate}});
  Payload text;
  text.type = PayloadType::text;
  text.key.series = weight;
  text.bytes.resize(5);
  std::memcpy(text.bytes.data(), "hello", 5);
  monitor.add_payload(text);
  text.key.call = 1;
  monitor.add_payload_at(text);
  const Floats values({1, -1});
  const ProbeItem items[] = {{weight, values.view()}};
  ProbeRequest signs;
  signs.signs = Signs::positive;
  monitor.probe(items, 0, signs);
  EXPECT_EQ(monitor.stop().rows_produced, 3);
}

// example monitor.h: What went wrong so far
TEST(Reference, WhatWentWrong) {
  const Scratch scratch;
  MonitorParts parts;
  parts.directory = scratch.path();
  LimitRule limit;
  limit.limit = 10.0;
  limit.stats = {Stat::absmax};
  parts.rules.push_back(make_limit_rule(limit));
  parts.alert_limit = 10.0;
  std::vector<std::string> told;
  parts.on_alert = [&](const Alert& alert, const Series&) { told.push_back(alert.rule); };
  Monitor monitor(Config(), Identity(), std::move(parts));
  const int optimizer = monitor.add_optimizer(0);
  monitor.observe(monitor.add_series(gradient_of("weight")), Floats({NAN, 100}).view());
  EXPECT_TRUE(monitor.saw_non_finite(optimizer));
  EXPECT_TRUE(monitor.has_alert_rules());
  EXPECT_EQ(monitor.failed_check(), "");
  EXPECT_EQ(monitor.failed_checks(), std::nullopt);  // config.checks is not set
  const Health health = monitor.stop();
  EXPECT_EQ(told.size(), static_cast<std::size_t>(health.alerts));
  EXPECT_EQ(told.back(), "limit");
}

// example monitor.h: The flight recorder
TEST(Reference, FlightRecorder) {
  const Scratch scratch;
  Config config;
  config.out = scratch.path();
  config.recorder_mb = 1.0;
  Monitor monitor(config, Identity());
  monitor.add_optimizer(0);
  EXPECT_TRUE(monitor.has_recorder());
  monitor.note_stage(FlightStage::forward_begin);
  CollectiveCall call;
  call.operation = monitor.flight_word("all_reduce");
  call.group = monitor.flight_group("world", "*");
  call.number = 1;
  call.bytes = 4000;
  monitor.note_collective(call);
  call.enters = false;
  monitor.note_collective(call);
  EXPECT_TRUE(monitor.flight_copies().empty());  // no rule has alerted
}

// example monitor.h: What is covered, and what failed
TEST(Reference, Bookkeeping) {
  const Scratch scratch;
  Config config;
  config.out = scratch.path();
  Monitor monitor(config, Identity());
  monitor.set_covered(kind::kGradReduced);
  monitor.set_not_covered("experts", "their gradients never reach an optimizer");
  monitor.set_note("model", R"({"layers": 2})");
  monitor.know_formula(0);  // AdamW, say: its step checks are certain
  monitor.refuse("dtype complex64");
  monitor.part_failed("attention", "no queries were found");
  const Health health = monitor.health();
  EXPECT_EQ(health.refused.at("dtype complex64"), 1);
  EXPECT_EQ(health.parts_off.at("attention"), "no queries were found");
}

// example monitor.h: Changes while running, and a budget
TEST(Reference, Changes) {
  const Scratch scratch;
  Config config;
  config.out = scratch.path();
  Monitor monitor(config, Identity());
  const int optimizer = monitor.add_optimizer(0);
  EXPECT_EQ(monitor.control_versions(), 0);  // nobody has written control.json
  EXPECT_FALSE(monitor.control().has_value());
  config.stop_step = 1;
  monitor.follow(config);  // from the next window on
  monitor.begin_attempt(optimizer);
  monitor.end_attempt(optimizer, Fate::taken, 1.0);
  EXPECT_FALSE(monitor.recording(optimizer));
  EXPECT_FALSE(monitor.step_timed(0.1, 0.001, true));  // without config.budget nothing changes
  EXPECT_EQ(monitor.budget(), "");
  settle_monitors_of(scratch.path(), 10.0);  // before this process reads the files
}

}  // namespace
}  // namespace trainmon
