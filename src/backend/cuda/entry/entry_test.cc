// Checks what the public functions return where there is no GPU; with one, they open it.
#include "kvcache/cuda_backend.h"

#include <string>

#include "gtest/gtest.h"

namespace kvcache::cuda::entry_test {
namespace {

TEST(CudaBackendEntry, SaysWhyThereIsNoBackend) {
  const auto devices = CudaDevices();
  const auto backend = MakeCudaBackend();
  if (backend.ok()) {
    ASSERT_TRUE(devices.ok());
    EXPECT_FALSE(devices->empty());
    EXPECT_EQ((*backend)->name(), "cuda");
    return;
  }
  EXPECT_NE(backend.status().code(), StatusCode::kInternal);
  EXPECT_FALSE(backend.status().message().empty());
  if (devices.ok()) return;
  EXPECT_EQ(devices.status().message(), backend.status().message());
#if !defined(KVCACHE_CUDA_LINKED)
  EXPECT_EQ(backend.status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(backend.status().message(), "this program was built without CUDA");
#endif
}

}  // namespace
}  // namespace kvcache::cuda::entry_test
