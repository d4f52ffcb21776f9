// What a sweep over tensors of a CUDA device costs the training thread, before a driver without a
// device: all that is ours but the kernel and Python. The yardstick is observe() of as many tensors
// of one element of the CPU. Smallest and median of many turns, which go one after the other.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "lines.h"
#include "stats/driver_stand_in.h"
#include "trainmon/monitor.h"

namespace {

using namespace trainmon;

struct Turns {
  std::vector<double> us;

  template <class Work>
  void take(const Work& work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    const auto end = std::chrono::steady_clock::now();
    us.push_back(std::chrono::duration<double, std::micro>(end - begin).count());
  }
  double least() const { return *std::ranges::min_element(us); }
  double median() {
    std::ranges::nth_element(us, us.begin() + static_cast<std::ptrdiff_t>(us.size() / 2));
    return us[us.size() / 2];
  }
};

}  // namespace

int main(int argc, char** argv) {
  const int tensors = std::atoi(bench::take_argument(argc, argv, "--tensors", "2000").c_str());
  const int rounds = std::atoi(bench::take_argument(argc, argv, "--rounds", "400").c_str());
  const std::string json = bench::take_argument(argc, argv, "--json", "");
  if (argc != 1 || tensors < 1 || rounds < 1) {
    std::fprintf(stderr, "usage: device_bench [--tensors N] [--rounds N] [--json FILE]\n");
    return 2;
  }
  const std::filesystem::path out =
      std::filesystem::temp_directory_path() / ("trainmon_bench_" + std::to_string(::getpid()));
  stand_in::write(stand_in::Results::stamped);
  const std::int64_t sizes[] = {32, 2};
  const float one = 0.5f;
  const std::int64_t bytes = std::int64_t{256} * tensors;
  const auto* memory =
      static_cast<std::byte*>(stand_in::allocate(0, static_cast<std::size_t>(bytes)));
  Turns on_device, on_host;
  {
    Config config;
    config.out = out;
    config.sinks = {};
    Monitor monitor(config, Identity{});
    monitor.add_optimizer(0);
    std::vector<SeriesId> series;
    std::vector<TensorView> views;
    for (int i = 0; i < tensors; ++i) {
      Series next;
      next.kind = "grad_reduced";
      next.name = "layers." + std::to_string(i) + ".weight";
      next.full_shape = {32, 2};
      series.push_back(monitor.add_series(next));
      views.push_back(
          {memory + 256 * i, DType::float32, 2, sizes, nullptr, Device::cuda, 0, nullptr});
    }
    const TensorView number = {&one, DType::float32, 0, nullptr, nullptr, Device::cpu, 0, nullptr};
    monitor.reserve_device(0, tensors, bytes);
    std::vector<Observed> done(views.size());
    for (int i = 0; i < rounds; ++i) {
      monitor.begin_attempt(0);
      on_device.take([&] {
        monitor.observe_all(series, views, done);
        monitor.seal(Moment::before_step);
      });
      on_host.take([&] {
        for (const SeriesId id : series) monitor.observe(id, number);
        monitor.seal(Moment::after_step);
      });
      monitor.end_attempt(0, Fate::taken, 1.0);
      if (!monitor.settle(10.0)) return 1;
    }
  }
  std::filesystem::remove_all(out);
  for (const std::string& fault : stand_in::take_faults())
    std::fprintf(stderr, "%s\n", fault.c_str());
  const bench::Line lines[] = {
      {"device sweep, least", on_device.least(), "us", "observe on the CPU", on_host.least()},
      {"device sweep, median", on_device.median(), "us", "observe on the CPU", on_host.median()}};
  for (const bench::Line& line : lines) {
    std::printf("%-22s %8.1f us for %d tensors, %8.1f us on the CPU: %.2f\n", line.name.c_str(),
                line.figure, tensors, line.yardstick_figure, line.figure / line.yardstick_figure);
  }
  bench::write_lines(json, {lines[0], lines[1]});
  return 0;
}
