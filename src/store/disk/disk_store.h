// The disk store with a clock that somebody else has, for tests: kvcache/store.h has the rest.
//
// Thread safety: that of Store.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "kvcache/store.h"

namespace kvcache::store {

using SteadyClock = std::function<std::chrono::steady_clock::time_point()>;

// OpenDiskStore, where `clock` tells when a file that could not be opened is tried again.
Result<std::unique_ptr<Store>> OpenDiskStoreWith(const DiskStoreOptions& options,
                                                 SteadyClock clock);
// The same for OpenDiskStoreLater.
Result<LateDiskStore> OpenDiskStoreLaterWith(const DiskStoreOptions& options, SteadyClock clock);

}  // namespace kvcache::store
