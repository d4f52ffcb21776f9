// What runs on the training thread and the writer for every tensor, to count its instructions:
//
//   hot_paths                lists the paths
//   hot_paths --toolchain    one JSON object: compiler, C library, zstd
//   hot_paths PATH           runs PATH once to fill caches and tables, then once inside
//                            measured_path(), where `valgrind --tool=callgrind
//                            --toggle-collect=measured_path` counts; prints the units of the count
//
// TRAINMON_CPU_LEVEL chooses the kernels. benchmarks/python/count_instructions.py runs all of it.
#include <gnu/libc-version.h>
#if __has_include(<zstd.h>)
#include <zstd.h>
#endif

#include <chrono>
#include <cstdio>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collect/collector.h"
#include "pipe/batch_queue.h"
#include "read_limit.h"
#include "sinks/log_encode.h"
#include "stats/cpu/level.h"
#include "stats/driver_stand_in.h"
#include "trainmon/probe.h"

// By this name callgrind knows where to count.
extern "C" [[gnu::noinline]] void measured_path(const std::function<void()>& work) {
  work();
}

namespace {

using namespace trainmon;

// `work` does `units` things called `unit`.
struct Path {
  std::function<void()> work;
  int units = 1;
  const char* unit = "";
};

// A tensor of one dimension with numbers of a gradient's size.
struct Tensor {
  std::vector<char> bytes;
  std::int64_t size;
  DType dtype;

  Tensor(DType type, std::int64_t n)
      : bytes(static_cast<std::size_t>(n) * dtype_size(type)), size(n), dtype(type) {
    bench::fill(bytes.data(), bytes.size(), type);
  }
  TensorView view() const {
    return {bytes.data(), dtype, 1, &size, nullptr, Device::cpu, 0, nullptr};
  }
};

std::uint64_t kept = 0;  // keeps results alive

Path statistics(DType dtype) {
  constexpr int kElements = 1 << 16;
  auto tensor = std::make_shared<Tensor>(dtype, kElements);
  return {[tensor] { kept += static_cast<std::uint64_t>(measure(tensor->view()).count); },
          kElements, "element"};
}

Path small_tensor() {
  constexpr int kCalls = 100;
  auto tensor = std::make_shared<Tensor>(DType::float32, 256);
  return {[tensor] {
            for (int i = 0; i < kCalls; ++i) {
              kept += static_cast<std::uint64_t>(measure(tensor->view()).count);
            }
          },
          kCalls, "tensor of 256"};
}

Path signs() {
  constexpr int kElements = 1 << 16;
  auto tensor = std::make_shared<Tensor>(DType::float32, kElements);
  return {[tensor] {
            ProbeRequest request;
            request.signs = Signs::positive;
            kept += probe(tensor->view(), request).signs.size();
          },
          kElements, "element"};
}

struct Rank {
  BatchQueue queue{std::size_t{1} << 30, Overflow::drop_newest};
  Collector collector{
      {}, [this](RecordBatch&& batch) { queue.push(std::move(batch), false); }, [] {}};
  std::vector<SeriesId> ids;

  // Tensor i has 64 + i * more elements.
  explicit Rank(int tensors, std::int64_t more = 0) {
    collector.windows().add_optimizer(0);
    for (int i = 0; i < tensors; ++i) {
      Series one;
      one.kind = kind::kGradReduced;
      one.name = "layers." + std::to_string(i / 10) + ".part" + std::to_string(i % 10) + ".weight";
      one.full_shape = {64 + i * more};
      ids.push_back(collector.series().add(one));
    }
  }
  std::list<Queued> popped() {
    auto batches = queue.pop_all(std::chrono::steady_clock::now());
    for (const Queued& one : batches) queue.release(one.bytes);
    return batches;
  }
};

Path observe() {
  constexpr int kTensors = 1000;
  auto rank = std::make_shared<Rank>(kTensors);
  auto tensor = std::make_shared<Tensor>(DType::float32, 64);
  return {[=] {
            for (const SeriesId id : rank->ids) rank->collector.observe(id, tensor->view(), 0);
          },
          kTensors, "tensor of 64"};
}

Path queue() {
  constexpr int kTensors = 100;
  auto rank = std::make_shared<Rank>(kTensors);
  auto tensor = std::make_shared<Tensor>(DType::float32, 64);
  return {[=] {
            for (const SeriesId id : rank->ids) {
              rank->collector.observe(id, tensor->view(), 0);
              rank->collector.seal(Moment::after_step);
              kept += rank->popped().size();
            }
          },
          kTensors, "tensor sealed, pushed and popped alone"};
}

// The training thread's part of a sweep over tensors of a CUDA device.
Path device_sweep() {
  constexpr int kTensors = 2000;
  constexpr std::int64_t kElements = 64;
  stand_in::write(stand_in::Results::stamped);
  auto rank = std::make_shared<Rank>(kTensors);
  const auto* memory = static_cast<std::byte*>(stand_in::allocate(0, kTensors * kElements * 4));
  static const std::int64_t size = kElements;
  std::vector<TensorView> views(kTensors);
  for (std::size_t i = 0; i < views.size(); ++i) {
    const void* data = memory + i * kElements * 4;
    views[i] = {data, DType::float32, 1, &size, nullptr, Device::cuda, 0, nullptr};
  }
  rank->collector.reserve_device(0, kTensors, kTensors * kElements * 4);
  return {[=, sweep = std::make_shared<DeviceSweep>()] {
            for (std::size_t i = 0; i < views.size(); ++i) {
              rank->collector.observe_on_device(*sweep, rank->ids[i], views[i], 0);
            }
            kept += rank->collector.launch_on_device(*sweep).empty() ? 1 : 0;
            rank->collector.seal(Moment::after_step);
          },
          kTensors, "tensor of a CUDA device"};
}

Path log_encoding() {
  constexpr int kTensors = 2000;
  const auto rank = std::make_shared<Rank>(kTensors, 1);
  for (std::size_t i = 0; i < rank->ids.size(); ++i) {
    Tensor tensor(DType::float32, 64 + static_cast<std::int64_t>(i));
    rank->collector.observe(rank->ids[i], tensor.view(), 0);
  }
  rank->collector.seal(Moment::after_step);
  auto batches = std::make_shared<std::list<Queued>>(rank->popped());
  for (Queued& one : *batches) one.batch.time_ns = 0;
  return {[batches, rank] {
            std::string out;
            log_format::append_batch_frame(out, 1, batches->front().batch,
                                           rank->collector.series());
            kept += out.size();
          },
          kTensors, "row"};
}

const std::vector<std::pair<std::string, std::function<Path()>>> kPaths = {
    {"statistics_float32", [] { return statistics(DType::float32); }},
    {"statistics_bfloat16", [] { return statistics(DType::bfloat16); }},
    {"statistics_float16", [] { return statistics(DType::float16); }},
    {"signs_float32", signs},
    {"small_tensor", small_tensor},
    {"observe", observe},
    {"queue", queue},
    {"device_sweep", device_sweep},
    {"log_encoding", log_encoding},
};

}  // namespace

int main(int argc, char** argv) {
  const std::string wanted = argc == 2 ? argv[1] : "";
  if (wanted == "--toolchain") {
#ifdef __clang__
    const char* compiler = __VERSION__;
#else
    const char* compiler = "g++ " __VERSION__;
#endif
#ifdef ZSTD_VERSION_STRING
    const char* zstd = ZSTD_VERSION_STRING;
#else
    const char* zstd = "none";
#endif
    std::printf("{\"compiler\": \"%s\", \"libc\": \"%s\", \"zstd\": \"%s\"}\n", compiler,
                gnu_get_libc_version(), zstd);
    return 0;
  }
  for (const auto& [name, make] : kPaths) {
    if (argc == 1) std::printf("%s\n", name.c_str());
    if (name != wanted) continue;
    const Path path = make();
    path.work();
    measured_path(path.work);
    std::printf("{\"level\": \"%s\", \"units\": %d, \"unit\": \"%s\", \"kept\": %d}\n",
                std::string(cpu_level_name(cpu_level())).c_str(), path.units, path.unit, kept != 0);
    return 0;
  }
  if (argc == 1) return 0;
  std::fprintf(stderr, "hot_paths: no path '%s'; without arguments it lists them\n",
               wanted.c_str());
  return 2;
}
