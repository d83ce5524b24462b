// A program of another project that uses an installed kvcache. It makes a cache on the CPU backend
// and prints the bytes that it has allocated.
#include <cstdio>

#include "kvcache/causal_cache.h"
#include "kvcache/cpu_backend.h"

int main() {
  auto backend = kvcache::MakeCpuBackend({.threads = 1});
  if (!backend.ok()) {
    std::fprintf(stderr, "%s\n", backend.status().message().c_str());
    return 1;
  }
  auto cache = kvcache::MakeCausalCache();
  const kvcache::Status status =
      cache->Init(**backend, {.max_sequences = 4, .capacity = 1024, .max_batch = 64});
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    return 1;
  }
  std::printf("kvcache on %s: %lld bytes held\n", kvcache::CpuTargetName().c_str(),
              static_cast<long long>(cache->memory()->AllocatedBytes()));
  return 0;
}
