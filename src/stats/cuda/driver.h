// The functions of the CUDA driver that are used. They are found in libcuda.so.1 when a GPU is
// first needed, so that one binary runs with and without a driver. They are there since CUDA
// 12.0; the kernels need a driver of the major version of the nvcc that made them, or newer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace trainmon::cuda {

// As declared by cuda.h, whose ABI the driver keeps.
using Status = int;  // CUresult, 0 is success
using Pointer = unsigned long long;
using Context = void*;
using Event = void*;
using Function = void*;
using Module = void*;
using Stream = void*;

inline constexpr unsigned kHostPortable = 1;  // CU_MEMHOSTALLOC_PORTABLE
inline constexpr unsigned kHostMapped = 2;    // CU_MEMHOSTALLOC_DEVICEMAP
inline constexpr int kMultiprocessors = 16;   // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
inline constexpr int kCapabilityMajor = 75;   // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
inline constexpr int kCapabilityMinor = 76;
inline constexpr int kCaptureRelaxed = 2;    // CU_STREAM_CAPTURE_MODE_RELAXED
inline constexpr unsigned kNonBlocking = 1;  // CU_STREAM_NON_BLOCKING
inline constexpr Status kOutOfMemory = 2;    // CUDA_ERROR_OUT_OF_MEMORY
inline constexpr Status kNotReady = 600;     // CUDA_ERROR_NOT_READY
inline constexpr Status kCapturing = 900;    // the first of those about captures

struct Driver {
  Status (*init)(unsigned flags) = nullptr;
  Status (*device_get)(int* device, int ordinal) = nullptr;
  Status (*device_name)(char* name, int length, int device) = nullptr;
  Status (*device_attribute)(int* value, int attribute, int device) = nullptr;
  Status (*primary_retain)(Context* context, int device) = nullptr;
  Status (*context_push)(Context context) = nullptr;
  Status (*context_pop)(Context* context) = nullptr;
  Status (*module_load)(Module* module, const void* image) = nullptr;
  Status (*module_function)(Function* function, Module module, const char* name) = nullptr;
  Status (*occupancy)(int* blocks, Function function, int threads, std::size_t shared) = nullptr;
  Status (*device_alloc)(Pointer* address, std::size_t bytes) = nullptr;
  Status (*host_alloc)(void** address, std::size_t bytes, unsigned flags) = nullptr;
  Status (*host_address)(Pointer* device, void* host, unsigned flags) = nullptr;
  Status (*copy_to_device)(Pointer to, const void* from, std::size_t bytes,
                           Stream stream) = nullptr;
  Status (*set_words)(Pointer to, unsigned value, std::size_t count, Stream stream) = nullptr;
  Status (*launch)(Function function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                   unsigned by, unsigned bz, unsigned shared, Stream stream, void** parameters,
                   void** extra) = nullptr;
  Status (*is_capturing)(Stream stream, int* status) = nullptr;
  Status (*exchange_mode)(int* mode) = nullptr;
  Status (*stream_create)(Stream* stream, unsigned flags) = nullptr;
  Status (*stream_wait)(Stream stream) = nullptr;
  Status (*stream_query)(Stream stream) = nullptr;
  Status (*stream_id)(Stream stream, unsigned long long* id) = nullptr;
  Status (*event_create)(Event* event, unsigned flags) = nullptr;
  Status (*event_record)(Event event, Stream stream) = nullptr;
  Status (*event_query)(Event event) = nullptr;
  Status (*event_time)(float* ms, Event begin, Event end) = nullptr;
  Status (*error_name)(Status status, const char** name) = nullptr;

  // Loaded and initialised once, thread-safe; nullptr with `why` where there is no usable driver.
  static const Driver* get(std::string& why);
  // "CUDA_ERROR_OUT_OF_MEMORY"
  std::string name_of(Status status) const;
};

}  // namespace trainmon::cuda
