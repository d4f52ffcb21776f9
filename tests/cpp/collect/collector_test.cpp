// Rows, their order, and values that arrive late; several producers at once (also under TSan).
#include "collect/collector.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/text.h"
#include "stats/check.h"

namespace trainmon {
namespace {

struct Fixture {
  std::mutex mutex;
  std::vector<RecordBatch> batches;
  std::atomic<int> ready{0};
  Collector collector;

  explicit Fixture(Schedule schedule = {}, bool checks = false)
      : collector(
            {schedule, kDefaultEps, 1, 0, checks},
            [this](RecordBatch&& batch) {
              const std::lock_guard lock(mutex);
              batches.push_back(std::move(batch));
            },
            [this] { ++ready; }) {
    collector.windows().add_optimizer(0);
  }

  SeriesId series(const std::string& name, DType dtype = DType::float32) {
    Series series;
    series.kind = "grad_reduced";
    series.name = name;
    series.dtype = dtype;
    return collector.series().add(series);
  }
};

struct Vector {
  std::vector<float> values;
  std::int64_t size;
  explicit Vector(std::vector<float> v) : values(std::move(v)), size(std::ssize(values)) {}
  TensorView view() const {
    TensorView view;
    view.data = values.data();
    view.ndim = 1;
    view.sizes = &size;
    return view;
  }
};

Series named(const std::string& name, DType dtype = DType::float32) {
  Series series;
  series.kind = "grad_reduced";
  series.name = name;
  series.dtype = dtype;
  return series;
}

TEST(SeriesRegistry, SeriesBeyondTheLimitShareOneOfAKindOfItsOwn) {
  SeriesRegistry registry(3);
  for (SeriesId i = 0; i < 3; ++i) EXPECT_EQ(registry.add(named(std::to_string(i))), i);
  EXPECT_EQ(registry.size(), 3u);
  for (int i = 3; i < 1000; ++i) {
    EXPECT_EQ(registry.add(named(std::to_string(i))), registry.overflow());
  }
  EXPECT_EQ(registry.size(), 4u);
  EXPECT_EQ(registry.at(registry.overflow()).kind, "overflow");
  // What was there before goes on, and another dtype is another series.
  EXPECT_EQ(registry.add(named("1")), 1u);
  EXPECT_EQ(registry.with_dtype(1, DType::float32), 1u);
  EXPECT_EQ(registry.with_dtype(1, DType::bfloat16), registry.overflow());
  EXPECT_EQ(registry.with_dtype(registry.overflow(), DType::float64), registry.overflow());
}

TEST(NameLimits, LongNamesAreCutAndStayDifferent) {
  const std::string long_name(20000, 'x');
  const std::string a = bounded_name(long_name + "a"), b = bounded_name(long_name + "b");
  EXPECT_EQ(a.size(), kLongestName);
  EXPECT_NE(a, b);
  EXPECT_EQ(a, bounded_name(long_name + "a"));
  // By md5sum of as many x and an a.
  EXPECT_EQ(a.substr(0, kLongestName - 35), std::string(kLongestName - 35, 'x'));
  EXPECT_EQ(a.substr(kLongestName - 35), "...c2ca4e7b60089290790fb4885ce1645c");
  EXPECT_EQ(bounded_name(std::string(kLongestName, 'x')), std::string(kLongestName, 'x'));
  std::string wide;
  for (int i = 0; i < 5000; ++i) wide += "\u65e5";
  EXPECT_LE(bounded_name(wide).size(), kLongestName);
  EXPECT_TRUE(is_utf8(bounded_name(wide)));
  const std::string not_text(20000, '\x80');
  EXPECT_LE(bounded_name(not_text).size(), kLongestName);
  SeriesRegistry registry;
  Series series = named(long_name + "a");
  series.element = long_name + "b";
  const SeriesId id = registry.add(series);
  EXPECT_EQ(registry.at(id).name, a);
  EXPECT_EQ(registry.at(id).element, b);
  EXPECT_EQ(registry.add(series), id);
}

TEST(NameLimits, ScalarsBeyondTheLimitAreCounted) {
  ScalarNames names(2);
  EXPECT_TRUE(names.takes("loss"));
  EXPECT_TRUE(names.takes("loss"));
  EXPECT_TRUE(names.takes("rate"));
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(names.takes("loss_" + std::to_string(i)));
  EXPECT_TRUE(names.takes("loss"));
  EXPECT_TRUE(names.takes("trainmon/share"));
  EXPECT_FALSE(names.takes("trainmon/mine"));
  EXPECT_EQ(names.values_left_out(), 11);
}

TEST(Collector, AScaledRowIsThatOfTheQuotients) {
  Fixture f;
  const SeriesId id = f.series("w");
  const Vector quotients({3.0f, -4.0f, 0.5f * float(kDefaultEps), 0.0f});
  Vector scaled = quotients;
  for (float& value : scaled.values) value *= 1024.0f;
  f.collector.observe(id, quotients.view(), 0);
  f.collector.observe_scaled(id, scaled.view(), 1024.0, 0);
  f.collector.seal(Moment::before_step);
  ASSERT_EQ(f.batches.at(0).rows.size(), 2u);
  const RowState& expected = f.batches[0].rows[0].state;
  const RowState& found = f.batches[0].rows[1].state;
  for (const StatDefinition& stat : stat_table()) {
    EXPECT_EQ(derive(stat.stat, found), derive(stat.stat, expected)) << stat.name;
  }
  EXPECT_EQ(found.zeros, 2);
}

TEST(Collector, RowsOfKindsThatObeyEquationsHaveChecks) {
  Fixture f({}, true);
  const Vector tensor({3.0f, -4.0f, 0.5f, 7.0f});
  const auto add = [&](const char* kind, Space space, std::vector<Range> ranges, Shape full) {
    Series series;
    series.kind = kind;
    series.name = "w" + std::to_string(f.collector.series().size());
    series.space = space;
    series.ranges = std::move(ranges);
    series.full_shape = std::move(full);
    return f.collector.series().add(series);
  };
  // What a check of each begins at in the full tensor; -1: it has none.
  const std::vector<std::pair<SeriesId, std::int64_t>> expected = {
      {add("grad_reduced", Space::whole, {}, {4}), 0},
      {add("exp_avg_sq", Space::whole, {}, {4}), 0},
      {add("actv", Space::whole, {}, {}), -1},
      {add("param_origin", Space::flat, {{100, 104}}, {7, 30}), 100},
      {add("param_origin", Space::flat, {{100, 102}, {110, 112}}, {7, 30}), -1},
      {add("param_origin", Space::flat, {{100, 105}}, {7, 30}), -1},  // padded: another size
      {add("param_updated", Space::box, {{2, 4}, {0, 2}}, {6, 2}), 4},
      {add("param_updated", Space::box, {{2, 3}, {1, 5}}, {6, 8}), 17},
      {add("param_updated", Space::box, {{2, 4}, {0, 2}}, {6, 3}), -1},
      {add("momentum_buffer", Space::box, {{0, 4}}, {4}), 0},
  };
  for (const auto& [series, from] : expected) f.collector.observe(series, tensor.view(), 0);
  f.collector.seal(Moment::before_step);
  const RecordBatch& batch = f.batches.at(0);
  ASSERT_EQ(batch.rows.size(), expected.size());
  std::size_t next = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(batch.rows[i].state.count, 4);
    EXPECT_EQ(batch.rows[i].state.sum, 6.5);
    if (expected[i].second < 0) continue;
    ASSERT_LT(next, batch.checks.size());
    const RowCheck& found = batch.checks[next++];
    Check check;
    measure(tensor.view(), expected[i].second, check);
    EXPECT_EQ(found.seq, batch.rows[i].key.seq);
    EXPECT_EQ(found.fingerprint, check.fingerprint);
    EXPECT_EQ(found.has_sketch, f.collector.series().at(expected[i].first).kind != "exp_avg_sq");
    if (found.has_sketch) {
      EXPECT_EQ(found.sketch, row_check(check).sketch);
    }
  }
  EXPECT_EQ(next, batch.checks.size());
}

TEST(Collector, AScaledRowHasTheFingerprintOfItsBitsAndTheSketchOfTheQuotients) {
  Fixture f({}, true);
  const SeriesId id = f.series("w");
  const Vector tensor({3.0f, -4.0f, 0.5f});
  f.collector.observe(id, tensor.view(), 0);
  f.collector.observe_scaled(id, tensor.view(), 4.0, 0);
  f.collector.seal(Moment::before_step);
  const std::vector<RowCheck>& checks = f.batches.at(0).checks;
  ASSERT_EQ(checks.size(), 2u);
  EXPECT_EQ(checks[0].fingerprint, checks[1].fingerprint);
  for (std::size_t i = 0; i < checks[0].sketch.size(); ++i) {
    EXPECT_EQ(checks[0].sketch[i], 4.0f * checks[1].sketch[i]);
  }
}

TEST(Collector, WithoutChecksABatchHasNone) {
  Fixture f;
  const Vector tensor({3.0f});
  f.collector.observe(f.series("w"), tensor.view(), 0);
  f.collector.seal(Moment::before_step);
  EXPECT_TRUE(f.batches.at(0).checks.empty());
}

TEST(Collector, ASampledRowHasItsSampleAndAShortTensorIsReadWhole) {
  Fixture f;
  const SeriesId id = f.series("w");
  std::vector<float> values(9 * 1024, 1.0f);
  values[5 * 1024] = std::numeric_limits<float>::quiet_NaN();
  const Vector large(std::vector<float>(16 * 1024, 2.0f)), small({1.0f, 3.0f}), bad(values);
  f.collector.observe_sample(id, small.view(), {0, 0, 0}, 2, 0);
  f.collector.observe_sample(id, large.view(), {0, 0, 1}, 2, 0);
  f.collector.observe(id, large.view(), 0);
  f.collector.seal(Moment::backward_end);
  ASSERT_EQ(f.batches.size(), 1u);
  const RecordBatch& batch = f.batches.at(0);
  ASSERT_EQ(batch.rows.size(), 3u);
  ASSERT_EQ(batch.samples.size(), 1u);
  EXPECT_EQ(batch.rows[0].key.flags | batch.rows[2].key.flags, 0u);
  EXPECT_EQ(batch.rows[0].state.max, 3.0);
  EXPECT_EQ(batch.rows[1].key.flags, flag::kSampled);
  EXPECT_TRUE(batch.rows[1].state.is_estimate());
  EXPECT_EQ(batch.rows[1].state.sum_sq, 4.0 * 16 * 1024);  // of a constant exact
  EXPECT_EQ(batch.samples[0].seq, batch.rows[1].key.seq);
  EXPECT_EQ(batch.samples[0].elements, 8 * 1024);
  EXPECT_EQ(batch.samples[0].sum_sq_error, 0.0);
  EXPECT_EQ(batch.samples[0].max, 2.0);
  // A NaN in the sample is urgent. Of 9 blocks each call reads 5 others.
  for (int call = 0; f.batches.size() == 1 && call < 100; ++call) {
    f.collector.observe_sample(id, bad.view(), {0, 1, call}, 2, 0);
  }
  ASSERT_EQ(f.batches.size(), 2u);
  EXPECT_EQ(f.batches[1].moment, Moment::alert);
  EXPECT_EQ(f.batches[1].rows.back().key.flags, flag::kSampled | flag::kNonFinite);
  EXPECT_EQ(f.batches[1].rows.back().state.nans, 1);
}

TEST(Collector, ARowHasItsAddressAndItsValues) {
  Fixture f;
  const SeriesId id = f.series("w");
  const Vector tensor({3.0f, -4.0f});
  f.collector.windows().on_backward(0, 1);
  f.collector.windows().on_backward(0, 2);
  f.collector.observe(id, tensor.view(), flag::kStillScaled);
  f.collector.observe_at(id, tensor.view(), {5, 6, 7}, 0);
  f.collector.seal(Moment::before_step);
  ASSERT_EQ(f.batches.size(), 1u);
  const RecordBatch& batch = f.batches[0];
  EXPECT_EQ(batch.moment, Moment::before_step);
  ASSERT_EQ(batch.rows.size(), 2u);
  EXPECT_EQ(batch.rows[0].key.window, 0);
  EXPECT_EQ(batch.rows[0].key.accum, 1);
  EXPECT_EQ(batch.rows[0].key.flags, flag::kStillScaled);
  EXPECT_EQ(derive(Stat::norm, batch.rows[0].state), 5.0);
  EXPECT_EQ(batch.rows[1].key.window, 5);
  EXPECT_EQ(batch.rows[1].key.accum, 6);
  EXPECT_EQ(batch.rows[1].key.call, 7);
  EXPECT_LT(batch.rows[0].key.seq, batch.rows[1].key.seq);
  EXPECT_EQ(f.collector.rows_produced(), 2);
}

TEST(Collector, PayloadsAreAddressedAndCountedLikeRows) {
  Fixture f;
  const SeriesId id = f.series("w");
  f.collector.windows().begin_attempt(0);
  f.collector.windows().end_attempt(0, Fate::taken, 1.0);
  f.collector.windows().on_backward(0, 1);
  f.collector.add_payload({PayloadType::text, {.series = id}, {}});
  f.collector.add_payload_at({PayloadType::text, {.series = id, .window = 0, .accum = 3}, {}});
  f.collector.seal(Moment::before_step);
  const RecordBatch& batch = f.batches.at(f.batches.size() - 1);
  ASSERT_EQ(batch.payloads.size(), 2u);
  EXPECT_EQ(batch.payloads[0].key.window, 1);
  EXPECT_EQ(batch.payloads[1].key.window, 0);  // the first window, not the open one
  EXPECT_EQ(batch.payloads[1].key.accum, 3);
  EXPECT_LT(batch.payloads[0].key.seq, batch.payloads[1].key.seq);
  EXPECT_EQ(f.collector.rows_produced(), 2);
}

TEST(Collector, AnotherDtypeIsAnotherSeries) {
  Fixture f;
  const SeriesId id = f.series("w", DType::bfloat16);
  const Vector tensor({1.0f});
  f.collector.observe(id, tensor.view(), 0);
  f.collector.seal(Moment::interval);
  const SeriesId used = f.batches.at(0).rows.at(0).key.series;
  EXPECT_NE(used, id);
  EXPECT_EQ(f.collector.series().at(used).dtype, DType::float32);
  EXPECT_EQ(f.collector.series().at(used).name, "w");
  EXPECT_EQ(f.collector.series().with_dtype(id, DType::float32), used);
}

TEST(Collector, TheFirstNonFiniteValueSealsAtOnce) {
  Fixture f;
  const SeriesId id = f.series("w");
  const Vector good({1.0f});
  const Vector bad({1.0f, std::numeric_limits<float>::quiet_NaN()});
  f.collector.observe(id, good.view(), 0);
  EXPECT_TRUE(f.batches.empty());
  f.collector.observe(id, bad.view(), 0);
  ASSERT_EQ(f.batches.size(), 1u);
  EXPECT_EQ(f.batches[0].moment, Moment::alert);
  ASSERT_EQ(f.batches[0].rows.size(), 2u);
  EXPECT_NE(f.batches[0].rows[1].key.flags & flag::kNonFinite, 0u);
  f.collector.observe(id, bad.view(), 0);
  EXPECT_EQ(f.batches.size(), 1u);
}

// A mask of attention is an activation of -Inf. The first one after rows without is told, for what
// is not finite later in its step. A NaN, +Inf, or -Inf in anything else is no mask.
TEST(Collector, AMaskIsNotBad) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float kNan = std::numeric_limits<float>::quiet_NaN();
  const Vector finite({1.0F, 2.0F}), masked({3.0F, -kInf}), added({0.0F, -kInf}),
      nothing({-kInf, -kInf}), both({kInf, -kInf}), nan({kNan, -kInf});
  const auto flags_of = [&](const char* kind, const std::vector<const Vector*>& values,
                            const char* element = "output") {
    Fixture f;
    f.collector.set_limit(100.0);
    Series series = named("attention.mask");
    series.kind = kind;
    series.element = element;
    const SeriesId id = f.collector.series().add(series);
    for (const Vector* value : values) {  // nullptr: a step
      if (value == nullptr) {
        f.collector.windows().end_attempt(0, Fate::taken, 1.0);
        continue;
      }
      f.collector.observe(id, value->view(), 0);
    }
    f.collector.seal(Moment::after_step);
    std::vector<std::uint32_t> flags;
    for (const RecordBatch& batch : f.batches) {
      for (const Row& row : batch.rows) flags.push_back(row.key.flags);
    }
    return flags;
  };
  using Flags = std::vector<std::uint32_t>;
  constexpr std::uint32_t kBad = flag::kNonFinite | flag::kOverLimit;
  EXPECT_EQ(flags_of("actv", {&masked, &masked, &finite, &masked}),
            (Flags{flag::kMasked, flag::kMasked, 0, flag::kMasked}));
  constexpr std::uint32_t kFirst = flag::kMasked | flag::kFirstMasked;
  EXPECT_EQ(flags_of("actv", {&finite, &masked}), (Flags{0, kFirst}));
  EXPECT_EQ(flags_of("actv", {&finite, &added, &masked}), (Flags{0, kFirst, kFirst}));
  EXPECT_EQ(flags_of("actv", {&finite, &nothing}), (Flags{0, kFirst}));
  EXPECT_EQ(flags_of("actv", {&finite, &masked, nullptr, &finite, &masked}),
            (Flags{0, kFirst, 0, flag::kMasked}));
  EXPECT_EQ(flags_of("grad_reduced", {&added}), (Flags{kBad}));
  EXPECT_EQ(flags_of("actv", {&masked, &both})[1], flag::kMasked);
  EXPECT_EQ(flags_of("actv", {&masked, &nan})[1] & flag::kNonFinite, flag::kNonFinite);
  EXPECT_EQ(flags_of("actv", {&both, &masked})[1], flag::kMasked);
  EXPECT_EQ(flags_of("actv", {&finite, &both})[1], kFirst);
  for (const char* const weight : {"param_origin", "param_updated", "buffer"}) {
    EXPECT_EQ(flags_of(weight, {&both, nullptr, &masked}), (Flags{kFirst, flag::kMasked}));
    EXPECT_EQ(flags_of(weight, {&finite, &both}), (Flags{0, kBad}));
    if (weight != std::string_view("buffer")) {
      EXPECT_EQ(flags_of(weight, {&nan})[0] & flag::kNonFinite, flag::kNonFinite);
    }
  }
  EXPECT_EQ(flags_of("buffer", {&nan, nullptr, &nan, &both}),
            (Flags{kFirst, flag::kMasked, flag::kMasked}));
  EXPECT_EQ(flags_of("buffer", {&finite, &nan})[1] & flag::kNonFinite, flag::kNonFinite);
  EXPECT_EQ(flags_of("canary_actv", {&finite, &masked}), flags_of("actv", {&finite, &masked}));
  EXPECT_EQ(flags_of("input", {&finite, &nan, nullptr, &nan, &finite})[1], kFirst);
  EXPECT_EQ(flags_of("input", {&nan, nullptr, &nan})[1], flag::kMasked);
  EXPECT_EQ(flags_of("actv", {&masked, &nan}, "input.0")[1], flag::kMasked);
  EXPECT_EQ(flags_of("actv", {&finite, &nan, nullptr, &nan}, "input.0"),
            (Flags{0, kFirst, flag::kMasked}));
  EXPECT_EQ(flags_of("actv", {&nan, nullptr, &nan, &masked}, "input.0"),
            (Flags{kFirst, flag::kMasked, flag::kMasked}));
  EXPECT_EQ(flags_of("actv", {&finite, &masked}, "input.0"), (Flags{0, kFirst}));
  EXPECT_EQ(flags_of("actv_grad", {&masked}), (Flags{kBad}));
  EXPECT_EQ(flags_of("grad_reduced", {&masked}), (Flags{kBad}));
}

TEST(Collector, RowsBeyondTheLimitAreFlagged) {
  Fixture f;
  const SeriesId id = f.series("w");
  const Vector small({3.0f, 4.0f});
  const Vector large({6.0f, -1.0f});
  f.collector.observe(id, large.view(), 0);
  f.collector.set_limit(5.0);
  f.collector.observe(id, small.view(), 0);  // a norm of 5 is not beyond 5
  f.collector.observe(id, large.view(), 0);
  f.collector.set_limit(4.5);
  f.collector.observe(id, small.view(), 0);  // no element is, the norm is
  f.collector.seal(Moment::interval);
  std::vector<std::uint32_t> flags;
  for (const Row& row : f.batches.at(0).rows) flags.push_back(row.key.flags);
  EXPECT_EQ(flags, (std::vector<std::uint32_t>{0, 0, flag::kOverLimit, flag::kOverLimit}));
}

TEST(Collector, RowsKnowTheirShape) {
  Fixture f;
  Series weight;
  weight.kind = kind::kGradReduced;
  weight.full_shape = {2};
  const SeriesId full = f.collector.series().add(weight), varies = f.series("w");
  const Vector two({1.0f, 2.0f});
  const Vector three({1.0f, 2.0f, 3.0f});
  const Vector none({});
  TensorView scalar = two.view();
  scalar.ndim = 0;
  for (const SeriesId id : {full, varies}) {
    for (const Vector* tensor : {&two, &three, &two, &none}) {
      f.collector.observe(id, tensor->view(), 0);
    }
    f.collector.observe(id, scalar, 0);
  }
  f.collector.seal(Moment::interval);
  const SeriesTable& table = f.collector.series();
  std::vector<Shape> shapes;
  std::vector<ShapeId> numbers;
  for (const Row& row : f.batches.at(0).rows) {
    shapes.push_back(*table.shape_of(row));
    numbers.push_back(row.shape);
  }
  EXPECT_EQ(shapes, (std::vector<Shape>{{2}, {3}, {2}, {0}, {}, {2}, {3}, {2}, {0}, {}}));
  // Only what is not the series' own is a number of a list; equal shapes have one.
  const ShapeId a = kFirstShape, b = a + 1, c = b + 1, d = c + 1;
  EXPECT_EQ(numbers,
            (std::vector<ShapeId>{kFullShape, a, kFullShape, b, c, d, a, d, b, kFullShape}));
  EXPECT_EQ(table.shape_of(Row()), nullptr);
  for (const ShapeId id : {0u, 1u, 99u, ~0u}) EXPECT_EQ(table.shape(id), nullptr);
}

TEST(Collector, NonFiniteValuesAreRememberedUntilTheWindowCloses) {
  Fixture f;
  const SeriesId id = f.series("w");
  const Vector good({1.0f});
  const Vector bad({std::numeric_limits<float>::infinity()});
  f.collector.observe(id, good.view(), 0);
  EXPECT_FALSE(f.collector.windows().saw_non_finite(0));
  f.collector.observe(id, bad.view(), 0);
  f.collector.observe(id, good.view(), 0);
  EXPECT_TRUE(f.collector.windows().saw_non_finite(0));
  f.collector.windows().abandon(0, Fate::skipped, 1.0);
  EXPECT_FALSE(f.collector.windows().saw_non_finite(0));
  EXPECT_FALSE(f.collector.windows().saw_non_finite(3));
}

TEST(Collector, AnEmptyBatchIsNotSubmitted) {
  Fixture f;
  f.collector.seal(Moment::interval);
  EXPECT_TRUE(f.batches.empty());
  EXPECT_EQ(f.collector.seal_late(), 0);
}

TEST(Collector, OutcomesAndScalarsRideWithTheBatch) {
  Fixture f;
  f.collector.add_scalar("loss", 2.5);
  f.collector.add_scalar("late", 1.5, 41);
  f.collector.windows().begin_attempt(0);
  f.collector.windows().end_attempt(0, Fate::taken, 1.0);
  f.collector.seal(Moment::after_step);
  ASSERT_EQ(f.batches.size(), 1u);
  EXPECT_EQ(f.batches[0].scalars.at(0).name, "loss");
  EXPECT_EQ(f.batches[0].scalars.at(0).window, 0);
  EXPECT_EQ(f.batches[0].scalars.at(1).window, 41);
  EXPECT_EQ(f.batches[0].outcomes.at(0).fate, Fate::taken);
}

// Values that arrive late: later batches are not held up, the rows keep their place by seq.
TEST(Collector, LateValuesAreFilledWhenTheyCome) {
  Fixture f;
  const SeriesId id = f.series("device");
  const Vector tensor({1.0f});
  f.collector.add_late_row(id, DType::float32, {}, {0, 0, 0}, 0);
  f.collector.observe(id, tensor.view(), 0);
  f.collector.add_late_row(id, DType::float32, {}, {0, 0, 1}, 0);
  const std::int64_t ticket = f.collector.seal_late();
  f.collector.seal(Moment::after_step);
  ASSERT_EQ(f.batches.size(), 2u);
  ASSERT_NE(f.batches[0].late, nullptr);
  EXPECT_FALSE(f.batches[0].late->ready());
  EXPECT_EQ(f.batches[1].late, nullptr);

  RowState first;
  first.count = 4;
  RowState second;
  second.count = 5;
  second.nans = 1;
  EXPECT_FALSE(f.collector.fulfil(ticket + 1, std::vector<RowState>{first}));
  EXPECT_TRUE(f.collector.fulfil(ticket, std::vector<RowState>{first, second}));
  EXPECT_FALSE(f.collector.fulfil(ticket, std::vector<RowState>{first, second}));
  EXPECT_EQ(f.ready, 1);
  RecordBatch& late = f.batches[0];
  ASSERT_TRUE(late.late->ready());
  late.late->fill(late);
  EXPECT_EQ(late.rows[0].state.count, 4);
  EXPECT_EQ(late.rows[1].state.nans, 1);
  EXPECT_NE(late.rows[1].key.flags & flag::kNonFinite, 0u);
  EXPECT_LT(late.rows[0].key.seq, f.batches[1].rows[0].key.seq);
  EXPECT_LT(f.batches[1].rows[0].key.seq, late.rows[1].key.seq);
}

TEST(Collector, AWrongNumberOfLateStatesIsRefused) {
  Fixture f;
  f.collector.add_late_row(f.series("device"), DType::float32, {}, {}, 0);
  const std::int64_t ticket = f.collector.seal_late();
  EXPECT_FALSE(f.collector.fulfil(ticket, std::vector<RowState>(2)));
  EXPECT_FALSE(f.batches.at(0).late->ready());
}

// Several producers, one sealing thread: every row arrives once, in batches ordered by seq with no
// hole between them.
TEST(Collector, ManyProducersLoseNothing) {
  Fixture f;
  constexpr int kThreads = 6;
  constexpr int kRows = 400;
  std::atomic<bool> done{false};
  std::thread sealer([&] {
    while (!done) {
      f.collector.seal(Moment::interval);
      f.collector.try_seal(Moment::interval);
    }
  });
  std::vector<std::thread> producers;
  for (int t = 0; t < kThreads; ++t) {
    producers.emplace_back([&, t] {
      const SeriesId id = f.series("p" + std::to_string(t));
      const Vector tensor({static_cast<float>(t)});
      for (int i = 0; i < kRows; ++i) f.collector.observe_at(id, tensor.view(), {0, 0, i}, 0);
    });
  }
  for (auto& producer : producers) producer.join();
  done = true;
  sealer.join();
  f.collector.seal(Moment::stop);

  EXPECT_EQ(f.collector.rows_produced(), kThreads * kRows);
  std::uint64_t next = 1;
  std::set<std::pair<SeriesId, std::int32_t>> seen;
  for (const RecordBatch& batch : f.batches) {
    for (const Row& row : batch.rows) {
      EXPECT_EQ(row.key.seq, next++);
      EXPECT_TRUE(seen.emplace(row.key.series, row.key.call).second);
    }
  }
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(kThreads * kRows));
}

TEST(SeriesRegistry, EqualSeriesShareAnIdAndReferencesStay) {
  SeriesRegistry registry;
  Series series;
  series.kind = "actv";
  series.name = "0";
  series.element = "output";
  const SeriesId id = registry.add(series);
  const Series* address = &registry.at(id);
  std::set<SeriesId> ids{id};
  for (int i = 1; i < 5000; ++i) {
    series.name = std::to_string(i);
    ids.insert(registry.add(series));
  }
  EXPECT_EQ(ids.size(), 5000u);
  series.name = "0";
  EXPECT_EQ(registry.add(series), id);
  EXPECT_EQ(&registry.at(id), address);
  // Every field is part of the identity.
  std::vector<Series> others(8, series);
  others[0].kind = "actv_grad";
  others[1].chunk = 1;
  others[2].element = "output.0";
  others[3].optimizer = 1;
  others[4].space = Space::flat;
  others[5].ranges = {{0, 4}};
  others[6].full_shape = {4};
  others[7].replication = Replication::identical;
  for (const Series& other : others) EXPECT_TRUE(ids.insert(registry.add(other)).second);
}

}  // namespace
}  // namespace trainmon
