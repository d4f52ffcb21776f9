// The sequence of driver calls of sweeps, beside the one that is stored. A launch more, an
// allocation while training goes on, or a wait in a hook is a difference.
//
// TRAINMON_WRITE_LAUNCH_TRACE=1 writes the file anew, after a change that is meant.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "monitor/device_fixture.h"

namespace trainmon::testing {
namespace {

using Lines = std::vector<std::string>;

// Scenario after scenario, each with the trace that it left. Devices and streams get numbers in the
// order in which they appear.
class Trace {
 public:
  void begin(const std::string& scenario) { lines_.push_back("== " + scenario); }
  void note() {
    for (std::string line : stand_in::take_trace()) {
      renumber(line, "device ", devices_);
      lines_.push_back(std::move(line));
    }
  }
  const Lines& lines() const { return lines_; }

 private:
  static void renumber(std::string& line, const std::string& word,
                       std::vector<std::string>& known) {
    const std::size_t at = line.find(word);
    if (at == std::string::npos || line.starts_with("allocate")) return;
    const std::size_t begin = at + word.size();
    const std::size_t end = line.find(' ', begin);
    const std::string number = line.substr(begin, end - begin);
    auto found = std::ranges::find(known, number);
    if (found == known.end()) found = known.insert(known.end(), number);
    line.replace(begin, end - begin, std::to_string(found - known.begin()));
  }
  Lines lines_;
  std::vector<std::string> devices_;
};

// As many as asked for, of every dtype that people train with, some with gaps or empty.
std::vector<TensorView> mixed(DeviceTensors& tensors, std::size_t count, void* stream) {
  constexpr DType kTypes[] = {DType::float32, DType::bfloat16, DType::float16, DType::float64,
                              DType::float8_e4m3fn};
  std::vector<TensorView> views;
  for (std::size_t i = 0; i < count; ++i) {
    const auto size = static_cast<std::int64_t>(i * 37 % 600);
    if (i % 100 == 99) {
      views.push_back(tensors.with_gaps(7, size + 1, stream));
    } else {
      views.push_back(tensors.make(kTypes[i % 5], {size}, stream));
    }
  }
  return views;
}

void sweeps_of_one_stream(Trace& trace) {
  const int device = fresh_device();
  void* stream = stand_in::make_stream(device);
  DeviceTensors tensors(device);
  DeviceMonitor watched(2000);
  trace.begin("no tensor");
  watched.sweep({});
  trace.note();
  trace.begin("one tensor, the first of its device");
  watched.sweep({tensors.make(DType::float32, {100}, stream)});
  trace.note();
  trace.begin("four tensors, one of several chunks");
  const TensorView small = tensors.make(DType::float32, {100}, stream);
  watched.sweep({small, tensors.make(DType::bfloat16, {1000, 300}, stream), small, small});
  trace.note();
  trace.begin("2,000 tensors, mixed");
  const std::vector<TensorView> many = mixed(tensors, 2000, stream);
  watched.sweep(many);
  trace.note();
  trace.begin("2,000 tensors, three more steps");
  for (int step = 0; step < 3; ++step) watched.sweep(many);
  trace.note();
  trace.begin("three tensors, one by one");
  for (std::size_t i = 0; i < 3; ++i) watched.monitor->observe(watched.series[i], small);
  trace.note();
  watched.monitor->stop();
}

void sweeps_of_100000(Trace& trace) {
  constexpr std::size_t kTensors = 100'000;
  stand_in::write(stand_in::Results::numbered);
  DeviceMonitor watched(kTensors);
  for (const bool is_reserved : {false, true}) {
    const int device = fresh_device();
    void* stream = stand_in::make_stream(device);
    DeviceTensors tensors(device);
    const std::vector<TensorView> all(kTensors, tensors.make(DType::float32, {10}, stream));
    trace.begin(is_reserved ? "100,000 tensors, reserved before" : "100,000 tensors");
    if (is_reserved) watched.monitor->reserve_device(device, kTensors, 40 * kTensors);
    trace.note();
    trace.begin("its sweeps");
    for (int step = 0; step < 2; ++step) watched.sweep(all);
    trace.note();
  }
  watched.monitor->stop();
  stand_in::write(stand_in::Results::computed);
}

void several_streams_and_devices(Trace& trace) {
  const int devices[] = {fresh_device(), fresh_device()};
  DeviceTensors first(devices[0]);
  DeviceTensors second(devices[1]);
  void* streams[] = {stand_in::make_stream(devices[0]), stand_in::make_stream(devices[0]),
                     stand_in::make_stream(devices[1])};
  DeviceMonitor watched(60);
  watched.monitor->reserve_device(devices[0], 60, 1 << 20);
  watched.monitor->reserve_device(devices[1], 60, 1 << 20);
  stand_in::take_trace();
  trace.begin("20 tensors, two streams in turns");
  std::vector<TensorView> all;
  for (int i = 0; i < 20; ++i) all.push_back(first.make(DType::float32, {50}, streams[i % 2]));
  watched.sweep(all);
  trace.note();
  trace.begin("20 tensors, two devices in turns");
  for (int i = 0; i < 20; ++i) {
    all[static_cast<std::size_t>(i)] = i % 2 == 0 ? first.make(DType::float32, {50}, streams[0])
                                                  : second.make(DType::float32, {50}, streams[2]);
  }
  watched.sweep(all);
  trace.note();
  watched.monitor->stop();
}

// Checks take no launch of their own, and memory once.
void sweeps_with_checks(Trace& trace) {
  const int device = fresh_device();
  void* stream = stand_in::make_stream(device);
  DeviceTensors tensors(device);
  DeviceMonitor watched(2000, {}, true);
  trace.begin("2,000 tensors, mixed, with checks");
  const std::vector<TensorView> many = mixed(tensors, 2000, stream);
  watched.sweep(many);
  trace.note();
  trace.begin("the same, three more steps");
  for (int step = 0; step < 3; ++step) watched.sweep(many);
  trace.note();
  watched.monitor->stop();
}

void captured(Trace& trace) {
  const int device = fresh_device();
  void* stream = stand_in::make_stream(device);
  DeviceTensors tensors(device);
  DeviceMonitor watched(10);
  std::vector<TensorView> all;
  for (int i = 0; i < 10; ++i) all.push_back(tensors.make(DType::float32, {50 + i}, stream));
  watched.sweep(all);
  stand_in::take_trace();
  trace.begin("10 tensors, captured");
  stand_in::begin_capture(stream);
  watched.sweep(all);
  const int graph = stand_in::end_capture(stream);
  trace.note();
  ASSERT_GT(graph, 0);
  trace.begin("two replays and a step without one");
  stand_in::replay(graph, stream);
  stand_in::replay(graph, stream);
  watched.sweep(all);
  trace.note();
  watched.monitor->stop();
}

TEST(LaunchTrace, IsAsStored) {
  stand_in::take_trace();
  Trace trace;
  sweeps_of_one_stream(trace);
  sweeps_of_100000(trace);
  several_streams_and_devices(trace);
  captured(trace);
  sweeps_with_checks(trace);
  EXPECT_EQ(stand_in::take_faults(), Lines{});
  if (std::getenv("TRAINMON_WRITE_LAUNCH_TRACE") != nullptr) {
    std::ofstream file(LAUNCH_TRACE);
    for (const std::string& line : trace.lines()) file << line << '\n';
    ASSERT_TRUE(file.flush()) << LAUNCH_TRACE;
  }
  std::ifstream file(LAUNCH_TRACE);
  Lines wanted;
  for (std::string line; std::getline(file, line);) wanted.push_back(line);
  EXPECT_EQ(trace.lines(), wanted) << "TRAINMON_WRITE_LAUNCH_TRACE=1 writes " << LAUNCH_TRACE;
}

}  // namespace
}  // namespace trainmon::testing
