#include "stats/driver_stand_in.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "stats/cuda/driver.h"
#include "stats/stand_in_kernels.h"

namespace trainmon::stand_in {
namespace {

using cuda::CheckedWork;
using cuda::Context;
using cuda::Event;
using cuda::Function;
using cuda::Module;
using cuda::Pointer;
using cuda::Status;
using cuda::Stream;
using cuda::Work;

// Of cuda.h.
constexpr Status kInvalidValue = 1;
constexpr Status kInvalidContext = 201;
constexpr Status kInvalidHandle = 400;
constexpr Status kNotFound = 500;
constexpr Status kNotReady = 600;
constexpr Status kNotPermitted = 900;  // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
constexpr Status kImplicit = 906;      // CUDA_ERROR_STREAM_CAPTURE_IMPLICIT

struct Task {
  std::function<void()> act;
  std::optional<CheckedWork> work;  // of a launch that measures
};

struct Queue {
  int device = 0;
  int number = 0;  // on its device, 0 for the stream of all
  bool is_there = true;
  bool blocks = true;  // waits for the stream 0, and that for it
  bool is_captured = false;
  bool is_invalid = false;  // its capture
  std::vector<Task> graph;
};

struct Moment {
  double seconds = 0.0;  // of the device's clock
  bool is_past = false;  // its stream has come to it
};

struct Waiting {
  Queue* queue;
  Task task;
};

struct Device {
  int streams = 0;
  Queue zero;  // the stream that has no handle
  Status stuck = 0;
};

enum class Kernel : std::uintptr_t { measure = 1, next_window = 2, measure_checked = 3 };
constexpr std::pair<std::string_view, Kernel> kKernels[] = {
    {"trainmon_measure", Kernel::measure},
    {"trainmon_next_window", Kernel::next_window},
    {"trainmon_measure_checked", Kernel::measure_checked}};

struct Driver {
  std::mutex mutex;
  Memory memory;
  std::array<Device, kDevices> devices;
  std::vector<std::unique_ptr<Queue>> queues;
  std::vector<std::vector<Task>> graphs;
  std::deque<Waiting> waiting;
  std::vector<std::unique_ptr<Moment>> events;
  double clock = 0.0;  // of all devices: it goes on while kernels run
  double launch_seconds = 0.0;
  std::vector<std::pair<std::string, int>> trace;
  std::map<std::string, std::int64_t> calls;
  std::int64_t until_failure = 0;
  Status failure = 0;
  bool sticks = false;
  bool is_held = false;
  bool has_failed = false;
  Results results = Results::computed;
};

Driver& driver() {
  static Driver& one = *new Driver();  // used until the process is gone
  return one;
}
thread_local std::vector<int> contexts;
thread_local int capture_mode = 0;

// Under the lock from here on.

void fault(Driver& d, const std::string& what) {
  d.memory.faults.push_back(what);
}
void note(Driver& d, const std::string& line) {
  if (!d.trace.empty() && d.trace.back().first == line) {
    ++d.trace.back().second;
  } else {
    d.trace.emplace_back(line, 1);
  }
}

// The error that a call returns before it does anything.
Status entered(Driver& d, const char* name) {
  ++d.calls[name];
  const int device = contexts.empty() ? 0 : contexts.back();
  if (d.until_failure > 0 && --d.until_failure == 0) {
    d.has_failed = true;
    if (d.sticks) {
      d.devices[static_cast<std::size_t>(device)].stuck = d.failure;
      std::erase_if(d.waiting, [&](const Waiting& one) { return one.queue->device == device; });
    }
    return d.failure;
  }
  return contexts.empty() ? 0 : d.devices[static_cast<std::size_t>(device)].stuck;
}

// The same for calls that work in the current context.
Status in_context(Driver& d, const char* name) {
  if (contexts.empty()) {
    fault(d, std::string(name) + " without a context");
    return kInvalidContext;
  }
  return entered(d, name);
}

bool any_capture(const Driver& d) {
  return std::ranges::any_of(d.queues, [](const auto& queue) { return queue->is_captured; });
}
// Calls that may wait, while some stream is captured by a thread that did not allow for it.
Status unsafe(Driver& d, const char* name) {
  const Status status = in_context(d, name);
  if (status != 0 || capture_mode == cuda::kCaptureRelaxed || !any_capture(d)) return status;
  for (const auto& queue : d.queues) queue->is_invalid |= queue->is_captured;
  fault(d, std::string(name) + " during a capture");
  return kNotPermitted;
}

Queue* queue_of(Driver& d, Stream stream, const char* name) {
  const int device = contexts.back();
  if (stream == nullptr) return &d.devices[static_cast<std::size_t>(device)].zero;
  for (const auto& queue : d.queues) {
    if (queue.get() != stream) continue;
    if (!queue->is_there) fault(d, std::string(name) + " on a stream that is destroyed");
    if (queue->device != device) fault(d, std::string(name) + " on a stream of another context");
    return queue->is_there && queue->device == device ? queue.get() : nullptr;
  }
  fault(d, std::string(name) + " on something that is no stream");
  return nullptr;
}
Moment* event_of(Driver& d, Event event) {
  for (const auto& known : d.events) {
    if (known.get() == event) return known.get();
  }
  fault(d, "something that is no event");
  return nullptr;
}
std::string place(const Queue& queue) {
  return "device " + std::to_string(queue.device) + " stream " + std::to_string(queue.number);
}

void run(Driver& d, Task& task) {
  if (task.work) {
    run_measure(d.memory, *task.work, d.results);
    d.clock += d.launch_seconds;
  } else {
    task.act();
  }
}
void run_waiting(Driver& d) {
  while (!d.waiting.empty()) {
    Waiting next = std::move(d.waiting.front());
    d.waiting.pop_front();
    run(d, next.task);
  }
}

Status enqueue(Driver& d, Queue& queue, Task task, const char* name) {
  if (queue.is_captured) {
    queue.graph.push_back(std::move(task));
    return 0;
  }
  if (queue.number == 0 && any_capture(d)) {
    for (const auto& other : d.queues) {
      if (other->blocks && other->device == queue.device) other->is_invalid |= other->is_captured;
    }
    fault(d, std::string(name) + " on stream 0 during a capture");
    return kImplicit;
  }
  if (task.work) {
    for (const Waiting& other : d.waiting) {
      if (other.task.work && other.queue != &queue && overlap(*task.work, *other.task.work)) {
        fault(d, "two launches under way use the same memory");
      }
    }
  }
  d.waiting.push_back({&queue, std::move(task)});
  if (!d.is_held) run_waiting(d);
  return 0;
}

Status allocate_for(Driver& d, void** address, std::size_t bytes, int device, const char* what) {
  if (bytes == 0) return kInvalidValue;
  note(d, "allocate " + std::string(what));
  *address = d.memory.take(bytes, device);
  return 0;
}

}  // namespace

void* allocate(int device, std::size_t bytes) {
  Driver& d = driver();
  const std::lock_guard lock(d.mutex);
  return d.memory.take(bytes, device);
}

void deallocate(void* memory) {
  Driver& d = driver();
  const std::lock_guard lock(d.mutex);
  run_waiting(d);  // the real one waits, too
  d.memory.give_back(memory);
}

void* make_stream(int device) {
  Driver& d = driver();
  const std::lock_guard lock(d.mutex);
  auto queue = std::make_unique<Queue>();
  queue->device = device;
  queue->number = ++d.devices[static_cast<std::size_t>(device)].streams;
  d.queues.push_back(std::move(queue));
  return d.queues.back().get();
}

void destroy_stream(void* stream) {
  const std::lock_guard lock(driver().mutex);
  static_cast<Queue*>(stream)->is_there = false;
}

void begin_capture(void* stream) {
  const std::lock_guard lock(driver().mutex);
  auto* queue = static_cast<Queue*>(stream);
  queue->is_captured = true;
  queue->is_invalid = false;
  queue->graph.clear();
}

int end_capture(void* stream) {
  Driver& d = driver();
  const std::lock_guard lock(d.mutex);
  auto* queue = static_cast<Queue*>(stream);
  queue->is_captured = false;
  if (queue->is_invalid) return 0;
  d.graphs.push_back(std::move(queue->graph));
  return static_cast<int>(d.graphs.size());
}

void replay(int graph, void* stream) {
  Driver& d = driver();
  const std::lock_guard lock(d.mutex);
  for (const Task& task : d.graphs[static_cast<std::size_t>(graph - 1)]) {
    enqueue(d, *static_cast<Queue*>(stream), task, "a replay");
  }
}

void hold() {
  const std::lock_guard lock(driver().mutex);
  driver().is_held = true;
}
void release() {
  Driver& d = driver();
  const std::lock_guard lock(d.mutex);
  d.is_held = false;
  run_waiting(d);
}
void write(Results results) {
  const std::lock_guard lock(driver().mutex);
  driver().results = results;
}

void set_launch_seconds(double seconds) {
  const std::lock_guard lock(driver().mutex);
  driver().launch_seconds = seconds;
}

void fail(std::int64_t nth, int status, bool sticks) {
  Driver& d = driver();
  const std::lock_guard lock(d.mutex);
  d.until_failure = nth;
  d.failure = status;
  d.sticks = sticks;
  d.has_failed = false;
}
bool has_failed() {
  const std::lock_guard lock(driver().mutex);
  return driver().has_failed;
}

std::vector<std::string> take_trace() {
  const std::lock_guard lock(driver().mutex);
  std::vector<std::string> lines;
  for (const auto& [line, count] : std::exchange(driver().trace, {})) {
    lines.push_back(count == 1 ? line : line + " x " + std::to_string(count));
  }
  return lines;
}
std::map<std::string, std::int64_t> calls() {
  const std::lock_guard lock(driver().mutex);
  return driver().calls;
}
std::vector<std::string> take_faults() {
  const std::lock_guard lock(driver().mutex);
  return std::exchange(driver().memory.faults, {});
}

}  // namespace trainmon::stand_in

// --- what libcuda.so.1 exports ------------------------------------------------------------------
using namespace trainmon::stand_in;

#define CALL(check, name)              \
  Driver& d = driver();                \
  const std::lock_guard lock(d.mutex); \
  if (const Status status = check(d, name)) return status

#pragma GCC visibility push(default)
extern "C" {

Status cuInit(unsigned) {
  CALL(entered, "cuInit");
  return 0;
}
Status cuDeviceGet(int* device, int ordinal) {
  CALL(entered, "cuDeviceGet");
  if (ordinal < 0 || ordinal >= kDevices) return 101;  // CUDA_ERROR_INVALID_DEVICE
  *device = ordinal;
  return 0;
}
Status cuDeviceGetName(char* name, int length, int) {
  CALL(entered, "cuDeviceGetName");
  std::strncpy(name, "stand-in", static_cast<std::size_t>(length));
  return 0;
}
Status cuDeviceGetAttribute(int* value, int attribute, int) {
  CALL(entered, "cuDeviceGetAttribute");
  *value = attribute == trainmon::cuda::kMultiprocessors   ? 132
           : attribute == trainmon::cuda::kCapabilityMajor ? 9
                                                           : 0;
  return 0;
}
Status cuDevicePrimaryCtxRetain(Context* context, int device) {
  CALL(entered, "cuDevicePrimaryCtxRetain");
  d.devices[static_cast<std::size_t>(device)].zero.device = device;
  *context = &d.devices[static_cast<std::size_t>(device)];
  return 0;
}
Status cuCtxPushCurrent_v2(Context context) {
  CALL(entered, "cuCtxPushCurrent_v2");
  const auto* device = static_cast<Device*>(context);
  contexts.push_back(static_cast<int>(device - d.devices.data()));
  return 0;
}
Status cuCtxPopCurrent_v2(Context* context) {
  Driver& d = driver();
  const std::lock_guard lock(d.mutex);
  ++d.calls["cuCtxPopCurrent_v2"];  // one that failed would leave a context that is not ours
  if (contexts.empty()) {
    fault(d, "cuCtxPopCurrent_v2 without a context");
    return kInvalidContext;
  }
  *context = &d.devices[static_cast<std::size_t>(contexts.back())];
  contexts.pop_back();
  return 0;
}
Status cuModuleLoadData(Module* module, const void* image) {
  CALL(unsafe, "cuModuleLoadData");
  *module = const_cast<void*>(image);
  return 0;
}
Status cuModuleGetFunction(Function* function, Module, const char* name) {
  CALL(in_context, "cuModuleGetFunction");
  const auto* found = std::ranges::find(kKernels, name, [](const auto& one) { return one.first; });
  if (found == std::end(kKernels)) return kNotFound;
  *function = reinterpret_cast<Function>(found->second);
  return 0;
}
Status cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Function, int, std::size_t) {
  CALL(in_context, "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  *blocks = 2;
  return 0;
}
Status cuMemAlloc_v2(Pointer* address, std::size_t bytes) {
  CALL(unsafe, "cuMemAlloc_v2");
  void* memory = nullptr;
  const Status status = allocate_for(d, &memory, bytes, contexts.back(), "on the device");
  *address = reinterpret_cast<Pointer>(memory);
  return status;
}
Status cuMemHostAlloc(void** address, std::size_t bytes, unsigned) {
  CALL(unsafe, "cuMemHostAlloc");
  return allocate_for(d, address, bytes, kHost, "on the host");
}
Status cuMemHostGetDevicePointer_v2(Pointer* device, void* host, unsigned) {
  CALL(in_context, "cuMemHostGetDevicePointer_v2");
  if (!d.memory.holds(host, 1, kHost, "a host pointer")) return kInvalidValue;
  *device = reinterpret_cast<Pointer>(host);
  return 0;
}
Status cuMemcpyHtoDAsync_v2(Pointer to, const void* from, std::size_t bytes, Stream stream) {
  CALL(in_context, "cuMemcpyHtoDAsync_v2");
  Queue* queue = queue_of(d, stream, "a copy");
  auto* target = reinterpret_cast<void*>(to);
  if (queue == nullptr) return kInvalidHandle;
  if (!d.memory.holds(target, bytes, queue->device, "the target of a copy")) return kInvalidValue;
  note(d, "copy on " + place(*queue));
  Task task;
  if (d.memory.is_of_host(from)) {  // page-locked: it is read when the device comes to it
    if (!d.memory.holds(from, bytes, kHost, "the source of a copy")) return kInvalidValue;
    task.act = [=] { std::memcpy(target, from, bytes); };
  } else {
    const auto* begin = static_cast<const std::byte*>(from);
    task.act = [target, bytes = std::vector<std::byte>(begin, begin + bytes)] {
      std::memcpy(target, bytes.data(), bytes.size());
    };
  }
  return enqueue(d, *queue, std::move(task), "a copy");
}
Status cuMemsetD32Async(Pointer to, unsigned value, std::size_t count, Stream stream) {
  CALL(in_context, "cuMemsetD32Async");
  Queue* queue = queue_of(d, stream, "setting memory");
  auto* target = reinterpret_cast<unsigned*>(to);
  if (queue == nullptr) return kInvalidHandle;
  if (!d.memory.holds(target, 4 * count, queue->device, "memory to be set")) return kInvalidValue;
  note(d, "set memory on " + place(*queue));
  return enqueue(d, *queue, {[=] { std::fill_n(target, count, value); }, {}}, "setting memory");
}
Status cuLaunchKernel(Function function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                      unsigned by, unsigned bz, unsigned shared, Stream stream, void** parameters,
                      void**) {
  CALL(in_context, "cuLaunchKernel");
  Queue* queue = queue_of(d, stream, "a launch");
  if (queue == nullptr) return kInvalidHandle;
  const bool is_possible = gx > 0 && gy == 1 && gz == 1 && gx <= 0x7fffffffu && bx * by * bz > 0 &&
                           bx * by * bz <= 1024 && shared <= 48 * 1024;
  if (!is_possible) {
    fault(d, "a launch beyond the limits");
    return kInvalidValue;
  }
  const std::string size = " grid " + std::to_string(gx) + " block " + std::to_string(bx);
  const std::string where = place(*queue) + (queue->is_captured ? ", captured" : "");
  if (function == reinterpret_cast<Function>(Kernel::next_window)) {
    note(d, "trainmon_next_window" + size + " on " + where);
    auto* window = *static_cast<std::int32_t**>(parameters[0]);
    if (!d.memory.holds(window, 4, queue->device, "a window")) return kInvalidValue;
    return enqueue(d, *queue, {[=] { ++*window; }, {}}, "a launch");
  }
  Task task;
  const bool with_checks = function == reinterpret_cast<Function>(Kernel::measure_checked);
  task.work.emplace();
  if (with_checks) {
    *task.work = *static_cast<CheckedWork*>(parameters[0]);
  } else {
    static_cast<Work&>(*task.work) = *static_cast<Work*>(parameters[0]);
  }
  note(d, (with_checks ? "trainmon_measure_checked" : "trainmon_measure") + size + " on " + where +
              ": " + std::to_string(task.work->tensors) + " tensors, " +
              std::to_string(task.work->chunks) + " chunks" +
              (task.work->entries == nullptr ? ", in the parameters" : ""));
  if (gx > task.work->chunks) fault(d, "more blocks than chunks");
  return enqueue(d, *queue, std::move(task), "a launch");
}
Status cuStreamIsCapturing(Stream stream, int* status) {
  CALL(in_context, "cuStreamIsCapturing");
  const Queue* queue = queue_of(d, stream, "a question");
  if (queue == nullptr) return kInvalidHandle;
  if (queue->number == 0 && any_capture(d)) return kImplicit;
  *status = queue->is_invalid && queue->is_captured ? 2 : queue->is_captured ? 1 : 0;
  return 0;
}
Status cuThreadExchangeStreamCaptureMode(int* mode) {
  Driver& d = driver();
  const std::lock_guard lock(d.mutex);
  ++d.calls["cuThreadExchangeStreamCaptureMode"];
  std::swap(*mode, capture_mode);
  return 0;
}
Status cuStreamCreate(Stream* stream, unsigned flags) {
  CALL(in_context, "cuStreamCreate");
  auto queue = std::make_unique<Queue>();
  queue->device = contexts.back();
  queue->number = ++d.devices[static_cast<std::size_t>(queue->device)].streams;
  queue->blocks = (flags & trainmon::cuda::kNonBlocking) == 0;
  d.queues.push_back(std::move(queue));
  *stream = d.queues.back().get();
  return 0;
}
Status cuStreamSynchronize(Stream stream) {
  CALL(unsafe, "cuStreamSynchronize");
  Queue* queue = queue_of(d, stream, "a wait");
  if (queue == nullptr) return kInvalidHandle;
  note(d, "wait for " + place(*queue));
  if (queue->is_captured) {
    queue->is_invalid = true;
    fault(d, "a wait for a stream that is captured");
    return kNotPermitted;
  }
  // What others hold may stay: it would not be waited for.
  for (std::size_t i = 0; i < d.waiting.size();) {
    if (d.waiting[i].queue != queue) {
      ++i;
      continue;
    }
    Waiting next = std::move(d.waiting[i]);
    d.waiting.erase(d.waiting.begin() + static_cast<std::ptrdiff_t>(i));
    run(d, next.task);
  }
  return 0;
}
Status cuStreamQuery(Stream stream) {
  CALL(unsafe, "cuStreamQuery");
  Queue* queue = queue_of(d, stream, "a question");
  if (queue == nullptr) return kInvalidHandle;
  const bool is_busy =
      std::ranges::any_of(d.waiting, [&](const Waiting& one) { return one.queue == queue; });
  return is_busy ? kNotReady : 0;
}
Status cuStreamGetId(Stream stream, unsigned long long* id) {
  CALL(in_context, "cuStreamGetId");
  const Queue* queue = queue_of(d, stream, "a question");
  if (queue == nullptr) return kInvalidHandle;
  *id = static_cast<unsigned long long>(queue->device) << 32 |
        static_cast<unsigned long long>(queue->number);
  return 0;
}
Status cuEventCreate(Event* event, unsigned) {
  CALL(unsafe, "cuEventCreate");
  d.events.push_back(std::make_unique<Moment>());
  *event = d.events.back().get();
  return 0;
}
Status cuEventRecord(Event event, Stream stream) {
  CALL(in_context, "cuEventRecord");
  Queue* queue = queue_of(d, stream, "an event");
  auto* moment = event_of(d, event);
  if (queue == nullptr || moment == nullptr) return kInvalidHandle;
  note(d, "event on " + place(*queue));
  moment->is_past = false;
  const auto come = [moment, &d] { *moment = {d.clock, true}; };
  return enqueue(d, *queue, {come, {}}, "an event");
}
Status cuEventQuery(Event event) {
  CALL(unsafe, "cuEventQuery");
  const auto* moment = event_of(d, event);
  if (moment == nullptr) return kInvalidHandle;
  return moment->is_past ? 0 : kNotReady;
}
Status cuEventElapsedTime(float* ms, Event begin, Event end) {
  CALL(in_context, "cuEventElapsedTime");
  const auto* from = event_of(d, begin);
  const auto* to = event_of(d, end);
  if (from == nullptr || to == nullptr) return kInvalidHandle;
  if (!from->is_past || !to->is_past) return kNotReady;
  *ms = static_cast<float>((to->seconds - from->seconds) * 1e3);
  return 0;
}
Status cuGetErrorName(Status status, const char** name) {
  switch (status) {
    case 2:
      *name = "CUDA_ERROR_OUT_OF_MEMORY";
      return 0;
    case 700:
      *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
      return 0;
    default:
      *name = nullptr;
      return kInvalidValue;
  }
}

}  // extern "C"
#pragma GCC visibility pop
