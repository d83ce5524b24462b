#include "backend/cuda/device/driver.h"

#include <dlfcn.h>

namespace kvcache::cuda {
namespace {

std::string VersionText(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string LinkerText() {
  const char* const text = dlerror();
  return text == nullptr ? "no reason given" : text;
}

template <class Function>
Status FindFunction(void* library, const std::string& path, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  if (function != nullptr) return Status::Ok();
  return {StatusCode::kNotFound, path + ": no function " + name + " (" + LinkerText() +
                                     "): not a driver of NVIDIA's, or one that is too old"};
}

}  // namespace

Result<Driver> OpenDriver(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return Status(StatusCode::kNotFound, "no driver of NVIDIA's on this machine: " + LinkerText());
  }
  Driver driver;
#define KVCACHE_DRIVER_FIND_(member, name, args) \
  KVCACHE_RETURN_IF_ERROR(FindFunction(handle, library, #name, driver.member));
  KVCACHE_DRIVER_FUNCTIONS(KVCACHE_DRIVER_FIND_)
#undef KVCACHE_DRIVER_FIND_
  return driver;
}

std::string DriverErrorText(const Driver& driver, int result) {
  const char* text = nullptr;
  if (driver.error_text(result, &text) != kDriverOk || text == nullptr) text = "unknown error";
  return std::string(text) + " (" + std::to_string(result) + ")";
}

Status StartDriver(const Driver& driver, int needed_version) {
  int version = 0;
  // The version can be asked for before the start, which fails for some drivers that are too old.
  if (driver.version(&version) == kDriverOk && version < needed_version) {
    return {StatusCode::kUnsupported, "the driver supports CUDA " + VersionText(version) +
                                          "; the kernels need " + VersionText(needed_version) +
                                          " or newer"};
  }
  const int started = driver.init(0);
  if (started == kDriverNoDevice) {
    return {StatusCode::kNotFound, "the driver sees no device (CUDA_VISIBLE_DEVICES may hide it)"};
  }
  if (started == kDriverOk) return Status::Ok();
  return {StatusCode::kIo, "starting the driver: " + DriverErrorText(driver, started)};
}

}  // namespace kvcache::cuda
