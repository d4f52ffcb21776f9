// Step checks of tensors of CUDA devices in a monitor, before a driver without a device.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "monitor/device_fixture.h"
#include "stats/check.h"

namespace trainmon::testing {
namespace {

using Faults = std::vector<std::string>;

struct CheckedDevice {
  int device = fresh_device();
  void* stream = stand_in::make_stream(device);
  DeviceTensors tensors{device};

  TensorView make(DType dtype, std::vector<std::int64_t> sizes) {
    return tensors.make(dtype, std::move(sizes), stream);
  }
  // Dense, but memory has the columns one after the other.
  TensorView transposed(std::int64_t rows, std::int64_t columns) {
    TensorView view = make(DType::float32, {rows, columns});
    strides.push_back(std::make_unique<std::vector<std::int64_t>>(std::vector{1L, rows}));
    view.strides = strides.back()->data();
    return view;
  }
  // One row, many times.
  TensorView expanded(std::int64_t rows, std::int64_t columns) {
    TensorView view = make(DType::float32, {rows, columns});
    strides.push_back(std::make_unique<std::vector<std::int64_t>>(std::vector{0L, 1L}));
    view.strides = strides.back()->data();
    return view;
  }
  std::vector<std::unique_ptr<std::vector<std::int64_t>>> strides;
};

std::vector<TensorView> every_kind(CheckedDevice& on) {
  std::vector<TensorView> views;
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16, DType::float64,
                            DType::float8_e4m3fn, DType::float8_e5m2, DType::int64}) {
    for (const std::int64_t size : {0L, 1L, 7L, 1000L, 70'000L}) {
      views.push_back(on.make(dtype, {size}));
    }
  }
  views.push_back(on.make(DType::bfloat16, {1100, 2000}));  // 34 chunks: two groups
  views.push_back(on.tensors.with_gaps(9, 31, on.stream));
  views.push_back(on.transposed(40, 1000));
  views.push_back(on.expanded(6, 1000));
  return views;
}

Check check_on_the_host(TensorView view, std::int64_t first = 0) {
  view.device = Device::cpu;
  Check check;
  measure(view, first, check);
  return check;
}

// The same bits, and sums that differ by the order in which they were made.
void expect_check(const RowCheck& got, const TensorView& view, double scale = 1.0) {
  TensorView on_cpu = view;
  on_cpu.device = Device::cpu;
  const RowState state = measure(on_cpu);
  const RowCheck wanted = row_check(check_on_the_host(view), scale);
  EXPECT_EQ(got.fingerprint, wanted.fingerprint);
  ASSERT_TRUE(got.has_sketch);
  const double size = std::sqrt(state.sum_sq * static_cast<double>(state.count)) / scale;
  for (std::size_t i = 0; i < got.sketch.size(); ++i) {
    EXPECT_NEAR(got.sketch[i], wanted.sketch[i], 4e-8 * size + 1e-30) << i;
  }
}

// Of each row its check.
std::map<std::uint64_t, RowCheck> checks_of(DeviceMonitor& watched) {
  watched.rows();
  const std::lock_guard lock(watched.kept->mutex);
  std::map<std::uint64_t, RowCheck> by_seq;
  for (const RowCheck& check : watched.kept->checks) {
    EXPECT_TRUE(by_seq.emplace(check.seq, check).second) << "two checks of one row";
  }
  return by_seq;
}

TEST(OnDeviceChecks, AreThoseOfTheHost) {
  CheckedDevice on;
  const std::vector<TensorView> views = every_kind(on);
  DeviceMonitor watched(views.size(), {}, true);
  for (int step = 0; step < 2; ++step) {
    for (const Observed done : watched.sweep(views)) EXPECT_EQ(done, Observed::recorded);
  }
  const std::vector<Row> rows = watched.rows();
  const auto checks = checks_of(watched);
  ASSERT_EQ(rows.size(), 2 * views.size());
  ASSERT_EQ(checks.size(), rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_TRUE(checks.contains(rows[i].key.seq));
    expect_check(checks.at(rows[i].key.seq), views[i % views.size()]);
    TensorView view = views[i % views.size()];
    view.device = Device::cpu;
    const RowState wanted = measure(view);
    EXPECT_EQ(rows[i].state.count, wanted.count);
    EXPECT_EQ(rows[i].state.max, wanted.max);
    EXPECT_EQ(rows[i].state.min, wanted.min);
  }
  EXPECT_EQ(stand_in::take_faults(), Faults{});
}

TEST(OnDeviceChecks, TheStateIsThatOfALaunchWithout) {
  CheckedDevice on;
  const std::vector<TensorView> views = every_kind(on);
  std::vector<Row> of[2];
  for (const bool checks : {false, true}) {
    DeviceMonitor watched(views.size(), {}, checks);
    watched.sweep(views);
    of[checks ? 1 : 0] = watched.rows();
    EXPECT_EQ(checks_of(watched).empty(), !checks);
  }
  ASSERT_EQ(of[0].size(), of[1].size());
  for (std::size_t i = 0; i < of[0].size(); ++i) {
    EXPECT_EQ(std::memcmp(&of[0][i].state, &of[1][i].state, sizeof(RowState)), 0) << i;
  }
}

// One launch, its table in the parameters, and none of the memory that checks need without them.
TEST(OnDeviceChecks, AreTakenInTheLaunchOfTheStates) {
  CheckedDevice on;
  DeviceMonitor watched(3, {}, true);
  const std::vector<TensorView> views(3, on.make(DType::float32, {100}));
  watched.monitor->reserve_device(on.device, 3, 3 * 400);
  stand_in::take_trace();
  const auto before = stand_in::calls();
  watched.sweep(views);
  watched.sweep(views);
  auto after = stand_in::calls();
  for (const char* call : {"cuMemAlloc_v2", "cuMemHostAlloc", "cuStreamSynchronize",
                           "cuMemcpyHtoDAsync_v2", "cuModuleLoadData"}) {
    EXPECT_EQ(after[call], before.contains(call) ? before.at(call) : 0) << call;
  }
  const std::string place = "device " + std::to_string(on.device) + " stream 1";
  EXPECT_EQ(stand_in::take_trace(),
            std::vector{"trainmon_measure_checked grid 3 block 256 on " + place +
                        ": 3 tensors, 3 chunks, in the parameters x 2"});
  EXPECT_EQ(checks_of(watched).size(), 6u);
  EXPECT_EQ(stand_in::take_faults(), Faults{});
}

TEST(OnDeviceChecks, ShardsFollowTheIndexInTheFullTensor) {
  CheckedDevice on;
  const TensorView whole = on.make(DType::bfloat16, {3, 1000});
  const std::int64_t sizes[] = {2, 1000}, one[] = {1, 1000};
  TensorView first = whole, second = whole;
  first.sizes = sizes;
  second.sizes = one;
  second.data = static_cast<const std::byte*>(whole.data) + 2 * 2000;
  DeviceMonitor watched(0, {}, true);
  for (const std::int64_t begin : {0, 2}) {
    Series series;
    series.kind = "param_origin";
    series.name = "w";
    series.space = Space::box;
    series.ranges = {{begin, begin == 0 ? 2 : 3}, {0, 1000}};
    series.full_shape = {3, 1000};
    watched.series.push_back(watched.monitor->add_series(series));
  }
  watched.sweep({first, second});
  const auto checks = checks_of(watched);
  ASSERT_EQ(checks.size(), 2u);
  EXPECT_EQ(checks.begin()->second.fingerprint + std::next(checks.begin())->second.fingerprint,
            check_on_the_host(whole).fingerprint);
}

TEST(OnDeviceChecks, SquaresHaveNoSketchAndOtherKindsNoCheck) {
  CheckedDevice on;
  const TensorView view = on.make(DType::float32, {100});
  DeviceMonitor watched(0, {}, true);
  for (const char* kind : {"exp_avg_sq", "actv", "exp_avg"}) {
    Series series;
    series.kind = kind;
    series.name = "w";
    watched.series.push_back(watched.monitor->add_series(series));
  }
  watched.sweep({view, view, view});
  const std::vector<Row> rows = watched.rows();
  const auto checks = checks_of(watched);
  ASSERT_EQ(rows.size(), 3u);
  ASSERT_EQ(checks.size(), 2u);
  const RowCheck& squares = checks.at(rows[0].key.seq);
  EXPECT_FALSE(squares.has_sketch);
  EXPECT_EQ(squares.fingerprint, check_on_the_host(view).fingerprint);
  expect_check(checks.at(rows[2].key.seq), view);
}

TEST(OnDeviceChecks, InputsHaveFingerprintsAndMasksAreNoAlarm) {
  CheckedDevice on;
  const TensorView ids = on.make(DType::int64, {4, 64});
  const TensorView mask = on.make(DType::float32, {4, 64});
  auto* first = static_cast<float*>(const_cast<void*>(mask.data));
  DeviceMonitor watched(0, {}, true);
  std::vector<SeriesId> series;
  for (const char* element : {"0", "mask"}) {
    Series one;
    one.kind = "input";
    one.element = element;
    series.push_back(watched.monitor->add_series(one));
  }
  for (const float value : {0.5f, -INFINITY, NAN}) {  // the second and third row have it
    *first = value;
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(watched.monitor->observe_input(series[i], series[i], i == 0 ? ids : mask, 0, 0, 0),
                Observed::recorded);
    }
    watched.monitor->seal(Moment::forward_end);
  }
  const std::vector<Row> rows = watched.rows();
  const auto checks = checks_of(watched);
  ASSERT_EQ(rows.size(), 6u);
  ASSERT_EQ(checks.size(), 6u);
  const RowCheck& of_ids = checks.at(rows[0].key.seq);
  EXPECT_FALSE(of_ids.has_sketch);
  EXPECT_EQ(of_ids.fingerprint, check_on_the_host(ids).fingerprint);
  EXPECT_EQ(checks.at(rows[2].key.seq).fingerprint, of_ids.fingerprint);
  EXPECT_EQ(rows[1].key.flags, 0u);
  EXPECT_EQ(rows[3].key.flags, flag::kMasked);
  EXPECT_EQ(rows[5].key.flags, flag::kMasked | flag::kFirstMasked);
}

TEST(OnDeviceChecks, TheSketchIsDividedByTheLossScale) {
  CheckedDevice on;
  const std::vector<TensorView> views = {on.make(DType::float32, {500}), on.transposed(30, 20)};
  const TensorView scale = on.make(DType::float32, {});
  *static_cast<float*>(const_cast<void*>(scale.data)) = 4.0f;
  DeviceMonitor watched(2, {}, true);
  std::vector<Observed> done(2);
  watched.monitor->observe_all(watched.series, views, done, 0, &scale);
  watched.monitor->seal(Moment::before_step);
  const std::vector<Row> rows = watched.rows();
  const auto checks = checks_of(watched);
  ASSERT_EQ(rows.size(), 2u);
  ASSERT_EQ(checks.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    expect_check(checks.at(rows[i].key.seq), views[i], 4.0);
    TensorView view = views[i];
    view.device = Device::cpu;
    EXPECT_EQ(rows[i].state.max, measure(view).max / 4.0);
  }
}

TEST(OnDeviceChecks, RowsOfACapturedGraphHaveNone) {
  CheckedDevice on;
  const std::vector<TensorView> views(3, on.make(DType::float32, {100}));
  DeviceMonitor watched(3, {}, true);
  watched.sweep(views);
  stand_in::begin_capture(on.stream);
  watched.sweep(views);
  const int graph = stand_in::end_capture(on.stream);
  ASSERT_GT(graph, 0);
  stand_in::replay(graph, on.stream);
  watched.monitor->stop();
  EXPECT_EQ(watched.kept->rows.size(), 6u);
  EXPECT_EQ(watched.kept->checks.size(), 3u);
  EXPECT_EQ(stand_in::take_faults(), Faults{});
}

// Without their kernel, or values in time, rows stand without checks: never with wrong ones.
TEST(OnDeviceChecks, AFailureCostsTheChecksAlone) {
  CheckedDevice on;
  const std::vector<TensorView> views = {on.make(DType::float32, {100}), on.transposed(30, 20)};
  DeviceMonitor watched(2, {}, true);
  {
    DeviceMonitor first(2);
    first.sweep(views);  // the device is there
  }
  // Its context, the question for a capture, the mode, then the module.
  for (int step = 0; step < 2; ++step) {
    if (step == 0) stand_in::fail(4, 2);
    for (const Observed done : watched.sweep(views)) EXPECT_EQ(done, Observed::recorded);
    if (step == 0) {
      EXPECT_TRUE(stand_in::has_failed());
    }
    stand_in::fail(0);
  }
  const std::vector<Row> rows = watched.rows();
  const auto checks = checks_of(watched);
  ASSERT_EQ(rows.size(), 4u);
  ASSERT_EQ(checks.size(), 2u);  // of the second step
  EXPECT_TRUE(checks.contains(rows[2].key.seq));
  for (std::size_t i = 0; i < 4; ++i) {
    TensorView view = views[i % 2];
    view.device = Device::cpu;
    EXPECT_EQ(rows[i].state.max, measure(view).max);
  }
}

TEST(OnDeviceChecks, ValuesThatNeverComeHaveNoCheck) {
  CheckedDevice on;
  const std::vector<TensorView> views(2, on.make(DType::float32, {100}));
  DeviceMonitor watched(2, {}, true);
  watched.sweep(views);
  watched.rows();
  stand_in::hold();
  watched.sweep(views);
  stand_in::fail(1, 700, true);  // what is under way is lost
  watched.monitor->stop();
  stand_in::fail(0);
  stand_in::release();
  std::int64_t not_ready = 0;
  for (const Row& row : watched.kept->rows) not_ready += (row.key.flags & flag::kNotReady) != 0;
  EXPECT_EQ(not_ready, 2);
  EXPECT_EQ(watched.kept->checks.size(), 2u);
}

}  // namespace
}  // namespace trainmon::testing
