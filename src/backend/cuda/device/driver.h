// The functions of NVIDIA's driver library that this backend calls, found when the program runs. So one program
// serves machines with and without a driver, and nothing here includes CUDA's headers.
//
// The names are those that the library exports: the header cuda.h maps cuMemAlloc to cuMemAlloc_v2, and so on.
//
// Thread safety: the driver's functions may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kvcache/status.h"

namespace kvcache::cuda {

// Results of the driver.
enum DriverResult : int {
  kDriverOk = 0,
  kDriverInvalidValue = 1,
  kDriverOutOfMemory = 2,
  kDriverNoDevice = 100,
  kDriverInvalidImage = 200,
  kDriverNoBinary = 209,
  kDriverInvalidPtx = 218,
  kDriverNoCompiler = 221,
  kDriverUnsupportedPtx = 222,
  kDriverNotFound = 500,
  kDriverOutOfResources = 701,
};

// Attributes of devices and functions.
inline constexpr int kAttributeProcessors = 16;
inline constexpr int kAttributeCapabilityMajor = 75;
inline constexpr int kAttributeCapabilityMinor = 76;
inline constexpr int kAttributeSharedBytes = 97;         // of a block that asks for more than 48 KB
inline constexpr int kFunctionAttributePtxVersion = 5;   // major × 10 + minor of the code's target
inline constexpr int kFunctionAttributeSharedBytes = 8;  // the most that launches may ask for
// How much of a processor's memory for both is shared memory and not a cache, in percent.
inline constexpr int kFunctionAttributeSharedPart = 9;
// Attributes of launches: whether the blocks of a kernel may start before the kernel before it has ended.
inline constexpr int kLaunchAttributeOverlap = 6;

using DriverAddress = std::uint64_t;

// As CUlaunchAttribute and CUlaunchConfig.
struct DriverLaunchAttribute {
  int id = 0;
  int unused = 0;
  alignas(8) int value[16] = {};
};
struct DriverLaunch {
  unsigned grid[3] = {1, 1, 1};
  unsigned block[3] = {1, 1, 1};
  unsigned shared_bytes = 0;
  void* stream = nullptr;
  DriverLaunchAttribute* attributes = nullptr;
  unsigned attribute_count = 0;
};
static_assert(sizeof(DriverLaunchAttribute) == 72 && sizeof(DriverLaunch) == 56);

// KVCACHE_DRIVER_FUNCTIONS(F) is F(member, exported name, arguments) for each function; all return a DriverResult
// as int. Objects of the driver are void*.
#define KVCACHE_DRIVER_FUNCTIONS(F)                                                  \
  F(init, cuInit, (unsigned))                                                        \
  F(version, cuDriverGetVersion, (int*))                                             \
  F(error_text, cuGetErrorString, (int, const char**))                               \
  F(device_count, cuDeviceGetCount, (int*))                                          \
  F(device, cuDeviceGet, (int*, int))                                                \
  F(device_name, cuDeviceGetName, (char*, int, int))                                 \
  F(device_memory, cuDeviceTotalMem_v2, (std::size_t*, int))                         \
  F(device_attribute, cuDeviceGetAttribute, (int*, int, int))                        \
  F(retain_context, cuDevicePrimaryCtxRetain, (void**, int))                         \
  F(release_context, cuDevicePrimaryCtxRelease_v2, (int))                            \
  F(set_context, cuCtxSetCurrent, (void*))                                           \
  F(memory_info, cuMemGetInfo_v2, (std::size_t*, std::size_t*))                      \
  F(allocate, cuMemAlloc_v2, (DriverAddress*, std::size_t))                          \
  F(free, cuMemFree_v2, (DriverAddress))                                             \
  F(allocate_host, cuMemHostAlloc, (void**, std::size_t, unsigned))                  \
  F(free_host, cuMemFreeHost, (void*))                                               \
  F(copy_in, cuMemcpyHtoDAsync_v2, (DriverAddress, const void*, std::size_t, void*)) \
  F(copy_out, cuMemcpyDtoHAsync_v2, (void*, DriverAddress, std::size_t, void*))      \
  F(copy, cuMemcpyDtoDAsync_v2, (DriverAddress, DriverAddress, std::size_t, void*))  \
  F(fill, cuMemsetD8Async, (DriverAddress, unsigned char, std::size_t, void*))       \
  F(create_stream, cuStreamCreate, (void**, unsigned))                               \
  F(destroy_stream, cuStreamDestroy_v2, (void*))                                     \
  F(synchronize, cuStreamSynchronize, (void*))                                       \
  F(create_event, cuEventCreate, (void**, unsigned))                                 \
  F(destroy_event, cuEventDestroy_v2, (void*))                                       \
  F(record_event, cuEventRecord, (void*, void*))                                     \
  F(wait_for_event, cuEventSynchronize, (void*))                                     \
  F(load_module, cuModuleLoadData, (void**, const void*))                            \
  F(unload_module, cuModuleUnload, (void*))                                          \
  F(function, cuModuleGetFunction, (void**, void*, const char*))                     \
  F(function_attribute, cuFuncGetAttribute, (int*, int, void*))                      \
  F(set_function_attribute, cuFuncSetAttribute, (void*, int, int))                   \
  F(launch, cuLaunchKernelEx, (const DriverLaunch*, void*, void**, void**))

struct Driver {
#define KVCACHE_DRIVER_MEMBER_(member, name, args) int(*member) args = nullptr;
  KVCACHE_DRIVER_FUNCTIONS(KVCACHE_DRIVER_MEMBER_)
#undef KVCACHE_DRIVER_MEMBER_
};

inline constexpr const char* kDriverLibrary = "libcuda.so.1";

// Opens the driver's library, which stays open until the program ends. Errors: kNotFound if there is none, or if
// it lacks a function, with the linker's words.
Result<Driver> OpenDriver(const std::string& library = kDriverLibrary);

// Returns the driver's text for a result, with its number.
std::string DriverErrorText(const Driver& driver, int result);

// Starts the driver. Errors: kNotFound if there is no device; kUnsupported, with both versions, for a driver older
// than `needed_version` (1000 × major + 10 × minor); kIo with the driver's words.
Status StartDriver(const Driver& driver, int needed_version);

}  // namespace kvcache::cuda
