// Tensors of CUDA devices in a monitor, before a driver without a device: rows, captured graphs,
// and every failure of the driver.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <thread>

#include "monitor/device_fixture.h"

namespace trainmon::testing {
namespace {

constexpr int kOutOfMemory = 2;       // CUDA_ERROR_OUT_OF_MEMORY
constexpr int kIllegalAddress = 700;  // CUDA_ERROR_ILLEGAL_ADDRESS
const std::vector<std::string> kNoFaults;

RowState on_the_host(TensorView view) {
  view.device = Device::cpu;
  return measure(view);
}

// Counts and bounds are equal. The host sums sixteen-bit floats in float32: 2e-8 of the norm.
void expect_same(const RowState& got, const RowState& wanted) {
  EXPECT_EQ(got.count, wanted.count);
  EXPECT_EQ(got.nans, wanted.nans);
  EXPECT_EQ(got.pos_infs, wanted.pos_infs);
  EXPECT_EQ(got.zeros, wanted.zeros);
  EXPECT_EQ(got.subnormals, wanted.subnormals);
  EXPECT_EQ(got.min, wanted.min);
  EXPECT_EQ(got.max, wanted.max);
  const double size = std::sqrt(wanted.sum_sq * static_cast<double>(wanted.count));
  EXPECT_NEAR(got.sum, wanted.sum, 4e-8 * size);
  EXPECT_NEAR(got.sum_sq, wanted.sum_sq, 4e-8 * wanted.sum_sq);
  EXPECT_NEAR(got.m2, wanted.m2, 4e-8 * wanted.sum_sq);
}

struct OneDevice {
  int device = fresh_device();
  void* stream = stand_in::make_stream(device);
  DeviceTensors tensors{device};
};

// Of every dtype and layout; one with thousands of chunks' worth of merging, one empty.
std::vector<TensorView> all_kinds(DeviceTensors& tensors, void* stream) {
  std::vector<TensorView> views;
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16, DType::float64,
                            DType::float8_e4m3fn, DType::float8_e5m2, DType::int64, DType::uint8}) {
    for (const std::int64_t size : {0L, 1L, 7L, 1000L, 70'000L}) {
      views.push_back(tensors.make(dtype, {size}, stream));
    }
  }
  views.push_back(tensors.make(DType::bfloat16, {1100, 2000}, stream));  // 34 chunks: two groups
  views.push_back(tensors.with_gaps(9, 31, stream));
  return views;
}

TEST(OnDevice, RowsAreThoseOfTheHost) {
  OneDevice on;
  const std::vector<TensorView> views = all_kinds(on.tensors, on.stream);
  DeviceMonitor watched(views.size());
  for (int step = 0; step < 2; ++step) {
    for (const Observed done : watched.sweep(views)) EXPECT_EQ(done, Observed::recorded);
  }
  const std::vector<Row> rows = watched.rows();
  ASSERT_EQ(rows.size(), 2 * views.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(i);
    expect_same(rows[i].state, on_the_host(views[i % views.size()]));
    EXPECT_EQ(rows[i].key.window, i < views.size() ? 0 : 1);
    EXPECT_EQ(rows[i].key.seq, rows[0].key.seq + i);
  }
  EXPECT_EQ(stand_in::take_faults(), kNoFaults);
}

TEST(OnDevice, LaunchesUnderWayKeepTheirMemory) {
  OneDevice on;
  void* other = stand_in::make_stream(on.device);
  DeviceMonitor watched(50);
  std::vector<std::vector<TensorView>> steps;
  for (int step = 0; step < 12; ++step) {
    steps.emplace_back();
    for (int i = 0; i < 50; ++i) {
      steps.back().push_back(
          on.tensors.make(DType::float32, {20 + step + i}, step % 2 == 0 ? on.stream : other));
    }
  }
  watched.sweep(steps[0]);
  stand_in::hold();  // the device is 11 steps behind
  for (std::size_t step = 1; step < steps.size(); ++step) watched.sweep(steps[step]);
  stand_in::release();
  const std::vector<Row> rows = watched.rows();
  ASSERT_EQ(rows.size(), 600u);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    expect_same(rows[i].state, on_the_host(steps[i / 50][i % 50]));
  }
  EXPECT_EQ(stand_in::take_faults(), kNoFaults);
}

TEST(OnDevice, NothingWaitsOnceTraining) {
  OneDevice on;
  DeviceMonitor watched(40);
  std::vector<TensorView> views;
  for (int i = 0; i < 40; ++i) views.push_back(on.tensors.make(DType::float32, {64}, on.stream));
  watched.monitor->reserve_device(on.device, 40, 40 * 256);
  const auto before = stand_in::calls();
  for (int step = 0; step < 100; ++step) watched.sweep(views);
  watched.rows();
  auto after = stand_in::calls();
  for (const char* call : {"cuStreamSynchronize", "cuMemAlloc_v2", "cuMemHostAlloc"}) {
    EXPECT_EQ(after[call], before.at(call)) << call;
  }
  EXPECT_EQ(after["cuLaunchKernel"] - before.at("cuLaunchKernel"), 100);
}

TEST(OnDevice, EveryReplayOfACaptureHasItsRows) {
  OneDevice on;
  DeviceMonitor watched(10);
  std::vector<TensorView> views;
  for (int i = 0; i < 10; ++i) views.push_back(on.tensors.make(DType::float32, {64}, on.stream));
  watched.sweep(views);
  stand_in::begin_capture(on.stream);
  watched.monitor->begin_attempt(0);
  std::vector<Observed> done(10);
  watched.monitor->observe_all(watched.series, views, done);
  const int graph = stand_in::end_capture(on.stream);
  ASSERT_GT(graph, 0) << "the capture was invalidated";
  watched.monitor->end_attempt(0, Fate::taken, 1.0);
  constexpr int kReplays = 100;
  for (int step = 0; step < kReplays; ++step) {
    stand_in::replay(graph, on.stream);
    watched.monitor->begin_attempt(0);
    watched.monitor->end_attempt(0, Fate::taken, 1.0);
  }
  watched.monitor->stop();
  std::map<std::int64_t, int> rows_of;
  for (const Row& row : watched.kept->rows) ++rows_of[row.key.window];
  EXPECT_EQ(rows_of.size(), 1u + kReplays);
  for (const auto& [window, rows] : rows_of) EXPECT_EQ(rows, 10) << window;
  EXPECT_EQ(stand_in::take_faults(), kNoFaults);
}

TEST(OnDevice, ReplaysWithoutRoomAreCounted) {
  OneDevice on;
  DeviceMonitor watched(10);
  const std::vector<TensorView> views(10, on.tensors.make(DType::float32, {8}, on.stream));
  watched.sweep(views);
  stand_in::begin_capture(on.stream);
  std::vector<Observed> done(10);
  watched.monitor->observe_all(watched.series, views, done);
  const int graph = stand_in::end_capture(on.stream);
  for (int step = 0; step < 2000; ++step) stand_in::replay(graph, on.stream);
  const Health health = watched.monitor->stop();
  const std::int64_t lost = 20'000 - 16'384;  // as much as the ring holds
  EXPECT_EQ(health.refused.at("replay_ring_full"), lost);
  EXPECT_EQ(watched.kept->rows.size(), 10u + 16'384u);
}

// The stream 0 cannot be asked while another is captured, and may not be used.
TEST(OnDevice, StreamZeroDuringACaptureIsLeftAlone) {
  OneDevice on;
  DeviceMonitor watched(1);
  const TensorView view = on.tensors.make(DType::float32, {64}, nullptr);
  watched.sweep({view});
  stand_in::begin_capture(on.stream);
  watched.sweep({view});
  EXPECT_GT(stand_in::end_capture(on.stream), 0) << "the capture was invalidated";
  EXPECT_EQ(stand_in::take_faults(), kNoFaults);
  watched.sweep({view});
  EXPECT_EQ(watched.rows().size(), 2u);
  EXPECT_EQ(watched.monitor->health().refused.size(), 1u);
}

// What a GradScaler leaves in gradients is taken out of rows, where the scale is a number of the
// same device and stream.
TEST(OnDevice, RowsAreDividedByTheLossScale) {
  OneDevice on;
  const std::vector<TensorView> views = {on.tensors.make(DType::float32, {500}, on.stream),
                                         on.tensors.make(DType::bfloat16, {90'000}, on.stream)};
  TensorView scale = on.tensors.make(DType::float32, {}, on.stream);
  auto& number = *static_cast<float*>(const_cast<void*>(scale.data));
  DeviceMonitor watched(2);
  std::vector<Observed> done(2);
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float value : {4.0f, infinity, 0.0f}) {
    number = value;
    watched.monitor->observe_all(watched.series, views, done, 0, &scale);
    watched.monitor->seal(Moment::before_step);
  }
  number = 4.0f;
  scale.stream = nullptr;
  watched.monitor->observe_all(watched.series, views, done, 0, &scale);
  watched.monitor->seal(Moment::before_step);
  const std::vector<Row> rows = watched.rows();
  ASSERT_EQ(rows.size(), 8u);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(i);
    const bool is_divided = i < 2;
    EXPECT_EQ((rows[i].key.flags & flag::kStillScaled) == 0, is_divided);
    RowState wanted = on_the_host(views[i % 2]);
    const double by = is_divided ? 4.0 : 1.0;
    EXPECT_EQ(rows[i].state.max, wanted.max / by);
    EXPECT_EQ(rows[i].state.min, wanted.min / by);
    EXPECT_NEAR(rows[i].state.sum_sq, wanted.sum_sq / (by * by), 4e-8 * wanted.sum_sq);
  }
  EXPECT_EQ(stand_in::take_faults(), kNoFaults);
}

// A device that is far behind costs rows, which are counted, and no memory.
TEST(OnDevice, ResultsWithoutRoomAreCounted) {
  OneDevice on;
  DeviceMonitor watched(1000);
  const std::vector<TensorView> views(1000, on.tensors.make(DType::float32, {8}, on.stream));
  watched.sweep(views);
  watched.rows();
  stand_in::hold();
  for (int step = 0; step < 30; ++step) watched.sweep(views);
  const std::int64_t refused = watched.monitor->health().refused["device_ring_full"];
  EXPECT_GT(refused, 0);
  stand_in::release();
  EXPECT_EQ(watched.rows().size(), 31'000u - static_cast<std::size_t>(refused));
  watched.sweep(views);
  EXPECT_EQ(watched.rows().size(), 32'000u - static_cast<std::size_t>(refused));
  EXPECT_EQ(stand_in::take_faults(), kNoFaults);
}

// Autograd has a thread for each device.
TEST(OnDevice, DevicesOfTwoThreads) {
  OneDevice on[2];
  DeviceMonitor watched(20);
  std::vector<TensorView> views[2];
  for (int i = 0; i < 20; ++i) {
    views[i / 10].push_back(on[i / 10].tensors.make(DType::float32, {30 + i}, on[i / 10].stream));
  }
  constexpr int kSteps = 200;
  const auto backward = [&](std::size_t device) {
    for (int step = 0; step < kSteps; ++step) {
      for (std::size_t i = 0; i < 10; ++i) {
        watched.monitor->observe(watched.series[10 * device + i], views[device][i]);
      }
      watched.monitor->seal(Moment::backward_end);
    }
  };
  std::thread other(backward, std::size_t{1});
  backward(0);
  other.join();
  const std::vector<Row> rows = watched.rows();
  ASSERT_EQ(rows.size(), 20u * kSteps);
  for (const Row& row : rows) {
    const Series& series = watched.monitor->series().at(row.key.series);
    const auto number = static_cast<std::size_t>(std::stoi(series.name.substr(1)));
    EXPECT_EQ(row.state.count, 30 + static_cast<std::int64_t>(number));
    EXPECT_EQ(row.state.max, on_the_host(views[number / 10][number % 10]).max);
  }
  EXPECT_EQ(stand_in::take_faults(), kNoFaults);
}

std::int64_t accounted(Monitor& monitor) {
  const Health health = monitor.health();
  std::int64_t rows = health.rows_produced;
  for (const auto& [reason, count] : health.refused) rows += count;
  return rows;
}

// Steps of training while the nth driver call fails. Each tensor gives a row or is counted. Returns
// whether a call failed: no more calls than that were made.
bool steps_with_failure(std::int64_t nth, int status, bool sticks, bool from_start, bool checks) {
  OneDevice on;
  DeviceMonitor watched(20, {}, checks);
  std::vector<TensorView> few;
  for (int i = 0; i < 20; ++i) few.push_back(on.tensors.make(DType::float32, {64}, on.stream));
  // More chunks than there is room for at first. Nobody reads the elements.
  constexpr std::int64_t kElements = std::int64_t{65'600} * (131'072 / 4);
  void* const large_memory = stand_in::allocate(on.device, 4 * kElements);
  const std::vector<TensorView> large(1, TensorView{.data = large_memory,
                                                    .ndim = 1,
                                                    .sizes = &kElements,
                                                    .device = Device::cuda,
                                                    .device_index = on.device,
                                                    .stream = on.stream});
  if (!from_start) watched.sweep(few);
  stand_in::fail(nth, status, sticks);
  std::int64_t observed = from_start ? 0 : 20;
  std::int64_t elsewhere = 0;
  for (const auto& views : {few, large, few, large, few}) {
    for (const Observed done : watched.sweep(views)) elsewhere += done == Observed::elsewhere;
    observed += static_cast<std::int64_t>(views.size());
  }
  const bool has_failed = stand_in::has_failed();
  stand_in::fail(0);
  const auto begin = std::chrono::steady_clock::now();
  const Health health = watched.monitor->stop();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(took.count(), kStopTimeout / 3) << "stop() waited for what never comes";
  stand_in::deallocate(large_memory);
  EXPECT_EQ(accounted(*watched.monitor) + elsewhere, observed);
  std::int64_t not_ready = 0;
  for (const Row& row : watched.kept->rows) not_ready += (row.key.flags & flag::kNotReady) != 0;
  // Without one that sticks the device does all that was launched.
  if (!sticks) {
    EXPECT_EQ(not_ready, 0);
  }
  EXPECT_EQ(stand_in::take_faults(), kNoFaults);
  return has_failed;
}

TEST(OnDevice, EveryCallFailsOnce) {
  stand_in::write(stand_in::Results::numbered);
  for (const bool sticks : {false, true}) {
    for (const auto& [from_start, checks] :
         {std::pair(true, false), std::pair(false, false), std::pair(true, true)}) {
      std::int64_t nth = 1;
      for (;; ++nth) {
        SCOPED_TRACE(std::to_string(nth) + (sticks ? " sticks" : "") +
                     (from_start ? " from the start" : "") + (checks ? " with checks" : ""));
        const int status = sticks ? kIllegalAddress : kOutOfMemory;
        if (!steps_with_failure(nth, status, sticks, from_start, checks)) break;
      }
      EXPECT_GT(nth, 20);
    }
  }
  stand_in::write(stand_in::Results::computed);
}

// Training was out of memory, freed some and tries again: so do we.
TEST(OnDevice, GoesOnAfterAnOutOfMemory) {
  OneDevice on;
  DeviceMonitor watched(20);
  std::vector<TensorView> views;
  for (int i = 0; i < 20; ++i) views.push_back(on.tensors.make(DType::float32, {64}, on.stream));
  watched.sweep(views);
  std::int64_t lost_steps = 0;
  for (std::int64_t nth = 1;; ++nth) {
    stand_in::fail(nth, kOutOfMemory);
    watched.sweep(views);
    if (!stand_in::has_failed()) break;
    stand_in::fail(0);
    const std::size_t before = watched.rows().size();
    watched.sweep(views);
    EXPECT_EQ(watched.rows().size(), before + 20) << "after call " << nth;
    ++lost_steps;
  }
  EXPECT_GE(lost_steps, 4);
  EXPECT_EQ(stand_in::take_faults(), kNoFaults);
}

// What was launched never comes once the context is lost, and nobody waits for it.
TEST(OnDevice, StopDoesNotWaitForALostDevice) {
  OneDevice on;
  DeviceMonitor watched(20);
  std::vector<TensorView> views;
  for (int i = 0; i < 20; ++i) views.push_back(on.tensors.make(DType::float32, {64}, on.stream));
  watched.sweep(views);
  watched.rows();
  stand_in::hold();
  watched.sweep(views);
  stand_in::fail(1, kIllegalAddress, true);  // of training: we have not met it yet
  const auto begin = std::chrono::steady_clock::now();
  watched.monitor->stop();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  stand_in::fail(0);
  stand_in::release();
  EXPECT_LT(took.count(), kStopTimeout / 3) << "stop() waited for what never comes";
  ASSERT_EQ(watched.kept->rows.size(), 40u);
  for (std::size_t i = 20; i < 40; ++i) {
    EXPECT_NE(watched.kept->rows[i].key.flags & flag::kNotReady, 0u);
  }
}

// Steps of a second by a simulated clock, to which a recorded step adds what its launches take on
// the device. Hooks see none of that.
double share_of_training(double budget, double launch_seconds, int steps) {
  OneDevice on;
  DeviceMonitor watched(20, budget);
  std::vector<TensorView> views;
  for (int i = 0; i < 20; ++i) views.push_back(on.tensors.make(DType::float32, {64}, on.stream));
  stand_in::set_launch_seconds(launch_seconds);
  double added = 0.0;
  int counted = 0;
  for (int step = 0; step < steps; ++step) {
    const bool recorded = watched.monitor->recording(0);
    watched.monitor->begin_attempt(0);
    std::vector<Observed> done(views.size());
    if (recorded) watched.monitor->observe_all(watched.series, views, done);
    watched.monitor->end_attempt(0, Fate::taken, 1.0);
    watched.monitor->seal(Moment::after_step);
    const double here = recorded ? launch_seconds : 0.0;
    watched.monitor->step_timed(1.0 + here, 0.0, recorded);
    if (step < steps / 2) continue;
    added += here;
    ++counted;
  }
  stand_in::set_launch_seconds(0.0);
  EXPECT_EQ(stand_in::take_faults(), kNoFaults);
  return added / counted;
}

TEST(OnDevice, ABudgetCountsTheTimeOfTheDevice) {
  constexpr double kBudget = 0.02;
  // All steps would cost five times the budget, which is kept to 20 % of itself (P22).
  const double share = share_of_training(kBudget, 0.1, 400);
  EXPECT_LE(share, 1.2 * kBudget);
  EXPECT_GE(share, 0.8 * kBudget);
  // What costs less than the budget is recorded at every step.
  EXPECT_DOUBLE_EQ(share_of_training(kBudget, 0.001, 400), 0.001);
}

}  // namespace
}  // namespace trainmon::testing
