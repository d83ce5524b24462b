#include "backend/cuda/device/driver_device.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "backend/cuda/device/driver_queue.h"

namespace kvcache::cuda {
namespace {

constexpr std::size_t kBufferAlignment = 256;
constexpr int kWaitingTarget = 90;
constexpr std::size_t kSharedBytesWithoutAsking = std::size_t{48} << 10;
// Shared memory is declared at this alignment (language/on_device-inl.h). So a compiler may read up to the next multiple
// of it: it joins neighbouring loads into one of 16 bytes, and drops the values behind the end.
constexpr std::size_t kSharedAlignment = 128;

DriverAddress AddressOf(const std::byte* at) {
  return static_cast<DriverAddress>(reinterpret_cast<std::uintptr_t>(at));
}

std::byte* PointerTo(DriverAddress address) {
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));
}

class DriverBuffer final : public Buffer {
 public:
  DriverBuffer(DriverQueue& queue, DriverAddress address, std::size_t size)
      : queue_(queue), address_(address), size_(size) {}
  // The driver waits for the work that uses the memory. A lost device has none.
  ~DriverBuffer() override {
    if (queue_.Enter().ok()) queue_.driver().free(address_);
  }
  std::byte* data() override { return PointerTo(address_); }
  std::size_t size_bytes() const override { return size_; }

 private:
  DriverQueue& queue_;
  DriverAddress address_;
  std::size_t size_;
};

// The functions of the images.
class Functions {
 public:
  struct Function {
    void* handle = nullptr;
    std::size_t shared_bytes = kSharedBytesWithoutAsking;  // that a launch may ask for
    bool waits = false;  // for the kernels before it (language/on_device-inl.h)
  };

  Functions(DriverQueue& queue, const KernelImages& kernels)
      : queue_(queue), images_(kernels.images), modules_(kernels.images.size(), nullptr) {}
  ~Functions() {
    if (!queue_.Enter().ok()) return;
    for (void* const module : modules_) {
      if (module != nullptr) queue_.driver().unload_module(module);
    }
  }
  Functions(const Functions&) = delete;
  Functions& operator=(const Functions&) = delete;

  // Loads all images. So a driver that cannot run them says it when the device is opened.
  Status LoadAll() {
    for (std::size_t i = 0; i < images_.size(); ++i) KVCACHE_RETURN_IF_ERROR(Load(i));
    return Status::Ok();
  }

  Result<Function*> Find(const Kernel& kernel) {
    Function& function = functions_[&kernel];
    if (function.handle != nullptr) return &function;
    const std::size_t first = LikelyModule(kernel.name);
    for (std::size_t i = 0; i < modules_.size(); ++i) {
      const std::size_t module = (first + i) % modules_.size();
      Function found;
      const int result = queue_.driver().function(&found.handle, modules_[module], kernel.name);
      if (result == kDriverNotFound) continue;
      KVCACHE_RETURN_IF_ERROR(queue_.Check(result, kernel.name));
      KVCACHE_RETURN_IF_ERROR(Describe(kernel, found));
      module_of_[kernel.name] = module;
      function = found;
      return &function;
    }
    return Status(StatusCode::kInternal, std::string("no kernel '") + kernel.name + "'");
  }

 private:
  // Code for 9.0 and newer waits. What the driver has compiled of PTX for an older target does not, on any device.
  Status Describe(const Kernel& kernel, Function& function) {
    int target = 0;
    KVCACHE_RETURN_IF_ERROR(queue_.Check(
        queue_.driver().function_attribute(&target, kFunctionAttributePtxVersion, function.handle),
        kernel.name));
    function.waits = target >= kWaitingTarget;
    if (!function.waits) return Status::Ok();
    // Two kernels are on a processor at once only if they divide its memory in the same way.
    return queue_.Check(
        queue_.driver().set_function_attribute(function.handle, kFunctionAttributeSharedPart, 100),
        kernel.name);
  }

  // Returns the module of the known kernel whose name begins most like `name`. Kernels of a source have similar names, so
  // few questions to the driver fail; tools that check calls report each.
  std::size_t LikelyModule(std::string_view name) const {
    std::size_t likely = 0;
    std::ptrdiff_t longest = 0;
    for (const auto& [other, module] : module_of_) {
      const std::ptrdiff_t same = std::ranges::mismatch(name, other).in1 - name.begin();
      if (same <= longest) continue;
      longest = same;
      likely = module;
    }
    return likely;
  }

  Status Load(std::size_t i) {
    if (modules_[i] != nullptr) return Status::Ok();
    return queue_.Check(queue_.driver().load_module(&modules_[i], images_[i]), "loading kernels");
  }

  DriverQueue& queue_;
  std::vector<const void*> images_;
  std::vector<void*> modules_;
  std::unordered_map<const Kernel*, Function> functions_;
  std::unordered_map<std::string, std::size_t> module_of_;  // of a kernel's name
};

class DriverDevice final : public Device {
 public:
  DriverDevice(const Driver& driver, const KernelImages& kernels, DeviceInfo info, int threads)
      : Device(threads),
        driver_(driver),
        info_(std::move(info)),
        queue_(driver_, info_.name, pool()),
        functions_(queue_, kernels) {}

  Status Open(int device) {
    KVCACHE_RETURN_IF_ERROR(queue_.Open(device));
    return functions_.LoadAll();
  }

  const DeviceInfo& info() const override { return info_; }
  std::size_t FreeBytes() const override {
    std::size_t free = 0;
    std::size_t all = 0;
    const bool known = queue_.Enter().ok() && driver_.memory_info(&free, &all) == kDriverOk;
    return known ? free : 0;
  }

  Result<std::unique_ptr<Buffer>> Allocate(std::size_t size_bytes) override {
    KVCACHE_RETURN_IF_ERROR(queue_.Enter());
    DriverAddress address = 0;
    const std::size_t size = std::max(size_bytes, kBufferAlignment);
    const int result = driver_.allocate(&address, size);
    if (result == kDriverOutOfMemory) return NoMemory(size_bytes);
    KVCACHE_RETURN_IF_ERROR(queue_.Check(result, "taking memory"));
    auto buffer = std::make_unique<DriverBuffer>(queue_, address, size_bytes);
    KVCACHE_RETURN_IF_ERROR(
        queue_.Check(driver_.fill(address, 0, size, queue_.stream()), "clearing memory"));
    return std::unique_ptr<Buffer>(std::move(buffer));
  }

  Status CopyIn(std::span<const std::byte> from, std::byte* to) override {
    return queue_.CopyIn(from, AddressOf(to));
  }
  Status CopyOut(const std::byte* from, std::span<std::byte> to) override {
    return queue_.CopyOut(AddressOf(from), to);
  }
  Status CopyInUnits(const LinkUnits& units, const FillUnit& fill, std::byte* to) override {
    if (units.unit_bytes > DriverQueue::kSlotBytes) return Device::CopyInUnits(units, fill, to);
    return queue_.CopyInUnits(units, fill, AddressOf(to));
  }
  Status CopyOutUnits(const std::byte* from, const LinkUnits& units,
                      const TakeUnit& take) override {
    if (units.unit_bytes > DriverQueue::kSlotBytes) return Device::CopyOutUnits(from, units, take);
    return queue_.CopyOutUnits(AddressOf(from), units, take);
  }
  Status Copy(const std::byte* from, std::byte* to, std::size_t bytes) override {
    KVCACHE_RETURN_IF_ERROR(queue_.Enter());
    if (bytes == 0) return Status::Ok();
    return queue_.Check(driver_.copy(AddressOf(to), AddressOf(from), bytes, queue_.stream()),
                        "copying on the device");
  }

  Status Launch(const Kernel& kernel, const Grid& grid, std::size_t shared_bytes,
                std::span<const std::byte> args) override {
    KVCACHE_RETURN_IF_ERROR(queue_.Enter());
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) return Status::Ok();
    KVCACHE_RETURN_IF_ERROR(CheckGrid(kernel, grid));
    KVCACHE_ASSIGN_OR_RETURN(Functions::Function* const function, functions_.Find(kernel));
    const std::size_t whole_bytes =
        (shared_bytes + kSharedAlignment - 1) / kSharedAlignment * kSharedAlignment;
    if (whole_bytes > function->shared_bytes) {
      KVCACHE_RETURN_IF_ERROR(queue_.Check(
          driver_.set_function_attribute(function->handle, kFunctionAttributeSharedBytes,
                                         static_cast<int>(whole_bytes)),
          kernel.name));
      function->shared_bytes = whole_bytes;
    }
    DriverLaunchAttribute overlap{.id = kLaunchAttributeOverlap, .value = {1}};
    const DriverLaunch launch{.grid = {static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                                       static_cast<unsigned>(grid.z)},
                              .block = {static_cast<unsigned>(kernel.threads), 1, 1},
                              .shared_bytes = static_cast<unsigned>(whole_bytes),
                              .stream = queue_.stream(),
                              .attributes = &overlap,
                              .attribute_count = function->waits ? 1U : 0U};
    void* parameters[] = {const_cast<std::byte*>(args.data())};
    return queue_.Check(driver_.launch(&launch, function->handle, parameters, nullptr),
                        kernel.name);
  }

  Status Synchronize() override { return queue_.Synchronize(); }

 private:
  Status NoMemory(std::size_t size_bytes) const {
    return {StatusCode::kOutOfMemory, "device '" + info_.name + "' has no memory for " +
                                          std::to_string(size_bytes) +
                                          " bytes: " + std::to_string(FreeBytes()) + " of " +
                                          std::to_string(info_.memory_bytes) + " are free"};
  }

  static Status CheckGrid(const Kernel& kernel, const Grid& grid) {
    if (grid.x < (std::int64_t{1} << 31) && grid.y < 65536 && grid.z < 65536) return Status::Ok();
    return {StatusCode::kInternal, std::string("kernel '") + kernel.name + "': a grid of " +
                                       std::to_string(grid.x) + " x " + std::to_string(grid.y) +
                                       " x " + std::to_string(grid.z) + " blocks is too large"};
  }

  Driver driver_;
  DeviceInfo info_;
  mutable DriverQueue queue_;
  Functions functions_;
};

std::string CapabilityText(int capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

}  // namespace

Result<int> CountDevices(const Driver& driver) {
  int count = 0;
  const int result = driver.device_count(&count);
  if (result == kDriverOk) return count;
  return Status(StatusCode::kIo, "counting devices: " + DriverErrorText(driver, result));
}

Result<DeviceInfo> DescribeDevice(const Driver& driver, int index) {
  KVCACHE_ASSIGN_OR_RETURN(const int count, CountDevices(driver));
  if (index < 0 || index >= count) {
    return Status(StatusCode::kInvalidArgument, "device is " + std::to_string(index) +
                                                    "; the driver sees " + std::to_string(count) +
                                                    ", the first of them is 0");
  }
  DeviceInfo info;
  int device = 0;
  int major = 0;
  int minor = 0;
  int shared_bytes = 0;
  char name[256] = {};
  int result = driver.device(&device, index);
  const auto then = [&](int next) { result = result == kDriverOk ? next : result; };
  then(driver.device_name(name, sizeof(name) - 1, device));
  then(driver.device_memory(&info.memory_bytes, device));
  then(driver.device_attribute(&major, kAttributeCapabilityMajor, device));
  then(driver.device_attribute(&minor, kAttributeCapabilityMinor, device));
  then(driver.device_attribute(&info.processors, kAttributeProcessors, device));
  then(driver.device_attribute(&shared_bytes, kAttributeSharedBytes, device));
  if (result != kDriverOk) {
    return Status(StatusCode::kIo, "describing device " + std::to_string(index) + ": " +
                                       DriverErrorText(driver, result));
  }
  info.name = name;
  info.capability = major * 10 + minor;
  info.shared_bytes = static_cast<std::size_t>(shared_bytes);
  return info;
}

Result<std::size_t> FreeBytesOf(const Driver& driver, int index) {
  int device = 0;
  void* context = nullptr;
  int result = driver.device(&device, index);
  if (result == kDriverOk) result = driver.retain_context(&context, device);
  const bool is_open = result == kDriverOk;
  std::size_t free = 0;
  std::size_t all = 0;
  if (result == kDriverOk) result = driver.set_context(context);
  if (result == kDriverOk) result = driver.memory_info(&free, &all);
  if (is_open) driver.release_context(device);
  if (result == kDriverOk) return free;
  return Status(StatusCode::kIo, "asking device " + std::to_string(index) +
                                     " for its free memory: " + DriverErrorText(driver, result));
}

Result<std::unique_ptr<Device>> MakeDriverDevice(const Driver& driver, const KernelImages& kernels,
                                                 int index, int threads) {
  KVCACHE_RETURN_IF_ERROR(StartDriver(driver, kernels.needed_version));
  KVCACHE_ASSIGN_OR_RETURN(DeviceInfo info, DescribeDevice(driver, index));
  if (info.capability < kLeastCapability) {
    return Status(StatusCode::kUnsupported,
                  "device '" + info.name + "' has capability " + CapabilityText(info.capability) +
                      "; the kernels need " + CapabilityText(kLeastCapability));
  }
  int device = 0;
  static_cast<void>(driver.device(&device, index));  // DescribeDevice has called it
  auto opened = std::make_unique<DriverDevice>(driver, kernels, std::move(info), threads);
  KVCACHE_RETURN_IF_ERROR(opened->Open(device));
  return std::unique_ptr<Device>(std::move(opened));
}

}  // namespace kvcache::cuda
