#include "stats/cuda/driver.h"

#include <dlfcn.h>

namespace trainmon::cuda {
namespace {

struct Loaded {
  Driver driver;
  bool is_usable = false;
  std::string why;
};

Loaded load() {
  Loaded loaded;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    loaded.why = "no CUDA driver (libcuda.so.1) on this machine";
    return loaded;
  }
  std::string missing;
  const auto find = [&](auto& function, const char* name) {
    void* address = dlsym(library, name);
    if (address == nullptr) missing = name;
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
  };
  Driver& d = loaded.driver;
  find(d.init, "cuInit");
  find(d.device_get, "cuDeviceGet");
  find(d.device_name, "cuDeviceGetName");
  find(d.device_attribute, "cuDeviceGetAttribute");
  find(d.primary_retain, "cuDevicePrimaryCtxRetain");
  find(d.context_push, "cuCtxPushCurrent_v2");
  find(d.context_pop, "cuCtxPopCurrent_v2");
  find(d.module_load, "cuModuleLoadData");
  find(d.module_function, "cuModuleGetFunction");
  find(d.occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  find(d.device_alloc, "cuMemAlloc_v2");
  find(d.host_alloc, "cuMemHostAlloc");
  find(d.host_address, "cuMemHostGetDevicePointer_v2");
  find(d.copy_to_device, "cuMemcpyHtoDAsync_v2");
  find(d.set_words, "cuMemsetD32Async");
  find(d.launch, "cuLaunchKernel");
  find(d.is_capturing, "cuStreamIsCapturing");
  find(d.exchange_mode, "cuThreadExchangeStreamCaptureMode");
  find(d.stream_create, "cuStreamCreate");
  find(d.stream_wait, "cuStreamSynchronize");
  find(d.stream_query, "cuStreamQuery");
  find(d.stream_id, "cuStreamGetId");
  find(d.event_create, "cuEventCreate");
  find(d.event_record, "cuEventRecord");
  find(d.event_query, "cuEventQuery");
  find(d.event_time, "cuEventElapsedTime");
  find(d.error_name, "cuGetErrorName");
  if (!missing.empty()) {
    loaded.why = "the CUDA driver has no " + missing + ": it is older than CUDA 12.0";
    return loaded;
  }
  if (const Status status = d.init(0); status != 0) {
    loaded.why = "the CUDA driver does not start: " + d.name_of(status);
    return loaded;
  }
  loaded.is_usable = true;
  return loaded;
}

}  // namespace

const Driver* Driver::get(std::string& why) {
  static const Loaded loaded = load();
  if (!loaded.is_usable) why = loaded.why;
  return loaded.is_usable ? &loaded.driver : nullptr;
}

std::string Driver::name_of(Status status) const {
  const char* name = nullptr;
  if (error_name(status, &name) == 0 && name != nullptr) return name;
  return "error " + std::to_string(status);
}

}  // namespace trainmon::cuda
