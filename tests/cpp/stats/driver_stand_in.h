// A CUDA driver without a device. It is a library named libcuda.so.1, so a program that is linked
// with it gets it instead of the real one. It exports what src/stats/cuda/driver.cpp looks for.
//
// Memory of a device is memory of the host. Streams are queues, and what they hold runs in the
// order in which it came, at once or when the test says so. Kernels are their host twins
// (host_kernel.h). What a real driver would punish is a fault, kept as a sentence: a wrong context,
// memory that is freed or not there, a stream that is gone, a launch beyond the limits, memory of
// two launches that overlaps, a call that a capture forbids.
//
// What it cannot show: races between kernels and copies of different streams, for nothing runs at
// the same time. Whether the kernel itself is right, or its bits where a device fuses operations.
// What waits inside a real driver, and how long anything takes. Memory that a device sees later
// than the host wrote it. Limits and errors that are not written here.
//
// All functions are thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#pragma GCC visibility push(default)  // of a library of its own
namespace trainmon::stand_in {

// Devices 0 to kDevices - 1, each with 132 multiprocessors that hold two blocks.
inline constexpr int kDevices = 512;

// What a framework does. No failure is injected here.
void* allocate(int device, std::size_t bytes);
void deallocate(void* memory);
void* make_stream(int device);
void destroy_stream(void* stream);
// `stream` is captured from now on, in the global mode; end gives the graph, 0 where the capture
// was invalidated.
void begin_capture(void* stream);
int end_capture(void* stream);
void replay(int graph, void* stream);

// What streams are given waits from now on, and runs when it is released.
void hold();
void release();
// Kernels write the number of elements and the row as count and sum, and look at no element; for
// many tensors. Or they write nothing but that they ran, for measurements of time.
enum class Results { computed, numbered, stamped };
void write(Results results);

// Seconds of the device that each launch takes from now on, by its events. 0 at first.
void set_launch_seconds(double seconds);

// The `nth` of the calls that trainmon makes from now on (1: the next one) returns `status`. After
// an error that sticks, so does every later call for that device, and what its streams hold is
// lost. 0: none fails.
void fail(std::int64_t nth, int status = 0, bool sticks = false);
bool has_failed();  // since fail()

// What trainmon did since the last call: a line each for launches, copies, allocations and waits.
// Equal lines that follow each other are one line that ends in " x N".
std::vector<std::string> take_trace();
// How often trainmon called each function.
std::map<std::string, std::int64_t> calls();
std::vector<std::string> take_faults();

}  // namespace trainmon::stand_in
#pragma GCC visibility pop
