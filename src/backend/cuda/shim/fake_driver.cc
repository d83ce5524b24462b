#include "backend/cuda/shim/fake_driver.h"

#include <cstring>
#include <deque>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/cuda/shim/kernel_registry.h"
#include "backend/cuda/shim/shim_device.h"

namespace kvcache::cuda {
namespace {

FakeDriver* fake = nullptr;

constexpr char kEmptyImage[] = "nothing";
constexpr char kKernelImage[] = "kernels";

std::byte* At(DriverAddress address) {
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));
}

}  // namespace

struct FakeDriver::State {
  std::unique_ptr<Device> device = MakeShimDevice();
  std::map<DriverAddress, std::unique_ptr<Buffer>> buffers;
  std::map<void*, std::vector<std::byte>> host;  // page-locked memory
  std::deque<std::function<Status()>> queue;     // that nobody has waited for
  std::int64_t done = 0;                         // of all that was queued
  std::map<void*, std::int64_t> events;          // how much was queued when each was recorded
  int result = 0;                                // of the work: 719 after a kernel's error
  std::string error;

  void RunUntil(std::int64_t count) {
    while (done < count && !queue.empty()) {
      const Status status = queue.front()();
      queue.pop_front();
      ++done;
      if (status.ok() || result != 0) continue;
      result = 719;
      error = status.message();
    }
  }
  std::int64_t queued() const { return done + static_cast<std::int64_t>(queue.size()); }
  int Wait(std::int64_t count) {
    RunUntil(count);
    return result;
  }
};

// The driver's functions. KVCACHE_FAKE_ returns the failure that a test asked for.
struct FakeFunctions {
  static int FailureOf(const char* function) {
    const auto found = fake->failures_.find(function);
    if (found == fake->failures_.end() || --found->second.calls > 0) return 0;
    found->second.calls = 0;
    return found->second.result;
  }
  static FakeDriver::State& state() { return *fake->state_; }
  static int Push(std::function<Status()> work) {
    state().queue.push_back(std::move(work));
    return state().result;
  }
  static void* NewObject() {
    ++fake->alive_;
    return new char;
  }
  static void DeleteObject(void* object) {
    --fake->alive_;
    delete static_cast<char*>(object);
  }

#define KVCACHE_FAKE_(name) \
  if (const int failure = FailureOf(#name); failure != 0) return failure

  static int cuInit(unsigned) {
    KVCACHE_FAKE_(cuInit);
    return fake->devices == 0 ? kDriverNoDevice : 0;
  }
  static int cuDriverGetVersion(int* version) {
    KVCACHE_FAKE_(cuDriverGetVersion);
    *version = fake->version;
    return 0;
  }
  static int cuGetErrorString(int result, const char** text) {
    *text = result == 719 ? "unspecified launch failure" : "an error";
    return 0;
  }
  static int cuDeviceGetCount(int* count) {
    KVCACHE_FAKE_(cuDeviceGetCount);
    *count = fake->devices;
    return 0;
  }
  static int cuDeviceGet(int* device, int index) {
    KVCACHE_FAKE_(cuDeviceGet);
    *device = index;
    return 0;
  }
  static int cuDeviceGetName(char* name, int size, int) {
    KVCACHE_FAKE_(cuDeviceGetName);
    std::strncpy(name, "Fake", static_cast<std::size_t>(size));
    return 0;
  }
  static int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
    KVCACHE_FAKE_(cuDeviceTotalMem_v2);
    *bytes = fake->memory_bytes;
    return 0;
  }
  static int cuDeviceGetAttribute(int* value, int attribute, int) {
    KVCACHE_FAKE_(cuDeviceGetAttribute);
    switch (attribute) {
      case kAttributeCapabilityMajor: *value = fake->capability / 10; return 0;
      case kAttributeCapabilityMinor: *value = fake->capability % 10; return 0;
      case kAttributeProcessors: *value = 4; return 0;
      case kAttributeSharedBytes: *value = 99 << 10; return 0;
      default: return kDriverInvalidValue;
    }
  }
  static int cuDevicePrimaryCtxRetain(void** context, int) {
    KVCACHE_FAKE_(cuDevicePrimaryCtxRetain);
    ++fake->alive_;
    *context = fake;
    return 0;
  }
  static int cuDevicePrimaryCtxRelease_v2(int) {
    --fake->alive_;
    return 0;
  }
  static int cuCtxSetCurrent(void*) {
    KVCACHE_FAKE_(cuCtxSetCurrent);
    return 0;
  }
  static int cuMemGetInfo_v2(std::size_t* free, std::size_t* all) {
    KVCACHE_FAKE_(cuMemGetInfo_v2);
    std::size_t used = 0;
    for (const auto& [address, buffer] : state().buffers) used += buffer->size_bytes();
    *free = fake->memory_bytes - used;
    *all = fake->memory_bytes;
    return 0;
  }
  static int cuMemAlloc_v2(DriverAddress* address, std::size_t bytes) {
    KVCACHE_FAKE_(cuMemAlloc_v2);
    std::size_t free = 0;
    std::size_t all = 0;
    cuMemGetInfo_v2(&free, &all);
    if (bytes == 0) return kDriverInvalidValue;
    if (bytes > free) return kDriverOutOfMemory;
    auto buffer = state().device->Allocate(bytes);
    if (!buffer.ok()) return kDriverOutOfMemory;
    // The device's memory is not zeroed when it is taken.
    std::memset((*buffer)->data(), 0xa5, bytes);
    *address = static_cast<DriverAddress>(reinterpret_cast<std::uintptr_t>((*buffer)->data()));
    state().buffers[*address] = std::move(buffer).value();
    ++fake->alive_;
    return 0;
  }
  static int cuMemFree_v2(DriverAddress address) {
    KVCACHE_FAKE_(cuMemFree_v2);
    state().RunUntil(state().queued());
    if (state().buffers.erase(address) == 0) return kDriverInvalidValue;
    --fake->alive_;
    return 0;
  }
  static int cuMemHostAlloc(void** memory, std::size_t bytes, unsigned) {
    KVCACHE_FAKE_(cuMemHostAlloc);
    std::vector<std::byte> block(bytes);
    *memory = block.data();
    state().host[*memory] = std::move(block);
    ++fake->alive_;
    return 0;
  }
  static int cuMemFreeHost(void* memory) {
    if (state().host.erase(memory) == 0) return kDriverInvalidValue;
    --fake->alive_;
    return 0;
  }
  static int cuMemcpyHtoDAsync_v2(DriverAddress to, const void* from, std::size_t bytes, void*) {
    KVCACHE_FAKE_(cuMemcpyHtoDAsync_v2);
    return Push([=] {
      return state().device->CopyIn({static_cast<const std::byte*>(from), bytes}, At(to));
    });
  }
  static int cuMemcpyDtoHAsync_v2(void* to, DriverAddress from, std::size_t bytes, void*) {
    KVCACHE_FAKE_(cuMemcpyDtoHAsync_v2);
    return Push([=] {
      return state().device->CopyOut(At(from), {static_cast<std::byte*>(to), bytes});
    });
  }
  static int cuMemcpyDtoDAsync_v2(DriverAddress to, DriverAddress from, std::size_t bytes, void*) {
    KVCACHE_FAKE_(cuMemcpyDtoDAsync_v2);
    return Push([=] { return state().device->Copy(At(from), At(to), bytes); });
  }
  static int cuMemsetD8Async(DriverAddress to, unsigned char value, std::size_t bytes, void*) {
    KVCACHE_FAKE_(cuMemsetD8Async);
    return Push([=] {
      const std::vector<std::byte> filled(bytes, std::byte{value});
      return state().device->CopyIn(filled, At(to));
    });
  }
  static int cuStreamCreate(void** stream, unsigned) {
    KVCACHE_FAKE_(cuStreamCreate);
    *stream = NewObject();
    return 0;
  }
  static int cuStreamDestroy_v2(void* stream) {
    DeleteObject(stream);
    return 0;
  }
  static int cuStreamSynchronize(void*) {
    KVCACHE_FAKE_(cuStreamSynchronize);
    ++fake->waits_;
    return state().Wait(state().queued());
  }
  static int cuEventCreate(void** event, unsigned) {
    KVCACHE_FAKE_(cuEventCreate);
    *event = NewObject();
    return 0;
  }
  static int cuEventDestroy_v2(void* event) {
    DeleteObject(event);
    return 0;
  }
  static int cuEventRecord(void* event, void*) {
    KVCACHE_FAKE_(cuEventRecord);
    state().events[event] = state().queued();
    return 0;
  }
  static int cuEventSynchronize(void* event) {
    KVCACHE_FAKE_(cuEventSynchronize);
    ++fake->waits_;
    return state().Wait(state().events[event]);
  }
  static int cuModuleLoadData(void** module, const void* image) {
    KVCACHE_FAKE_(cuModuleLoadData);
    *module = const_cast<void*>(image);
    ++fake->alive_;
    return 0;
  }
  static int cuModuleUnload(void*) {
    --fake->alive_;
    return 0;
  }
  static int cuModuleGetFunction(void** function, void* module, const char* name) {
    KVCACHE_FAKE_(cuModuleGetFunction);
    if (module != kKernelImage) {
      ++fake->not_found_;
      return kDriverNotFound;
    }
    const shim::KernelEntry* const entry = shim::FindKernel(name);
    if (entry == nullptr) return kDriverNotFound;
    *function = const_cast<shim::KernelEntry*>(entry);
    return 0;
  }
  static int cuFuncSetAttribute(void*, int attribute, int value) {
    KVCACHE_FAKE_(cuFuncSetAttribute);
    if (attribute == kFunctionAttributeSharedPart && value == 100) ++fake->wholly_shared_;
    if (attribute == kFunctionAttributeSharedBytes) {
      fake->allowed_shared_bytes_ = static_cast<std::size_t>(value);
    }
    return 0;
  }
  static int cuFuncGetAttribute(int* value, int attribute, void*) {
    KVCACHE_FAKE_(cuFuncGetAttribute);
    if (attribute != kFunctionAttributePtxVersion) return kDriverInvalidValue;
    *value = fake->target;
    return 0;
  }
  static int cuLaunchKernelEx(const DriverLaunch* launch, void* function, void** parameters,
                              void**) {
    KVCACHE_FAKE_(cuLaunchKernelEx);
    if (launch->stream == nullptr || launch->block[1] != 1 || launch->block[2] != 1) {
      return kDriverInvalidValue;
    }
    for (unsigned i = 0; i < launch->attribute_count; ++i) {
      const DriverLaunchAttribute& attribute = launch->attributes[i];
      if (attribute.id != kLaunchAttributeOverlap) return kDriverInvalidValue;
      if (attribute.value[0] == 1) ++fake->overlaps_;
    }
    const Grid grid{.x = launch->grid[0], .y = launch->grid[1], .z = launch->grid[2]};
    const auto& entry = *static_cast<const shim::KernelEntry*>(function);
    const auto* const first = static_cast<const std::byte*>(parameters[0]);
    ++fake->launches_;
    fake->shared_bytes_ = launch->shared_bytes;
    return Push([&entry, grid, threads = launch->block[0], shared_bytes = launch->shared_bytes,
                 args = std::vector<std::byte>(first, first + entry.args_bytes)] {
      const Kernel kernel{entry.name, static_cast<int>(threads)};
      return state().device->Launch(kernel, grid, shared_bytes, args);
    });
  }
#undef KVCACHE_FAKE_
};

FakeDriver::FakeDriver() : state_(std::make_unique<State>()) {
  fake = this;
}
FakeDriver::~FakeDriver() {
  fake = nullptr;
}

Driver FakeDriver::driver() const {
  Driver driver;
#define KVCACHE_DRIVER_FAKE_(member, name, args) driver.member = FakeFunctions::name;
  KVCACHE_DRIVER_FUNCTIONS(KVCACHE_DRIVER_FAKE_)
#undef KVCACHE_DRIVER_FAKE_
  return driver;
}

KernelImages FakeDriver::kernels() const {
  return {.images = {kEmptyImage, kKernelImage}, .needed_version = 12000};
}

void FakeDriver::Fail(const std::string& function, int result, int n) {
  failures_[function] = {result, n};
}

}  // namespace kvcache::cuda
