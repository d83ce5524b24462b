// The backend of tests that compare an engine's results with those of the CPU: KVCACHE_TEST_BACKEND names another one.
#pragma once

#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>

#include "backend/cpu/cpu_backend.h"
#include "backend/split/split_backend.h"
#include "kvcache/cpu_backend.h"
#include "platform/numa/numa_testing.h"
#include "support/remote_backend.h"

namespace kvcache::testing {

// Returns the backend that the environment variable names; null for the CPU, which an engine makes itself.
inline std::unique_ptr<Backend> BackendOfTests(int threads) {
  const char* const name = std::getenv("KVCACHE_TEST_BACKEND");
  if (name == nullptr || name == std::string_view("cpu")) return nullptr;
  const auto make_cpu = [threads] {
    return std::move(MakeCpuBackend({.threads = threads})).value();
  };
  if (name == std::string_view("remote")) return std::make_unique<RemoteBackend>(make_cpu());
  if (name == std::string_view("nodes")) {
    static InventedNuma system;
    return std::make_unique<cpu::CpuBackend>(InventedNodes(4, threads + 3), system);
  }
  if (name != std::string_view("split")) std::abort();  // an unknown name
  return std::make_unique<SplitBackend>(
      make_cpu(), std::make_unique<RemoteBackend>(make_cpu(), RemoteRouting::kByBackend), 1);
}

}  // namespace kvcache::testing
