// Runs every kind of cache over the CUDA backend: random scripts against the reference models, and snapshots
// that go between this backend and the CPU's.
#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/shim/shim_device.h"
#include "gtest/gtest.h"
#include "kvcache/cpu_backend.h"
#include "support/cache_driver.h"
#include "support/internal/kinds_random.h"
#include "support/kernel_backend.h"
#include "support/script_random.h"

namespace kvcache::cuda::cache_test {
namespace {

using kvcache::testing::CacheDriver;
using kvcache::testing::DriverSetup;
using kvcache::testing::KernelBackend;
using kvcache::testing::RandomSetup;
using kvcache::testing::RandomStep;
using kvcache::testing::ReferenceBackend;
using kvcache::testing::Script;
using kvcache::testing::TestKind;

std::unique_ptr<ReferenceBackend> OnCuda(std::uint64_t seed) {
  return std::make_unique<KernelBackend>(
      std::make_unique<CudaBackend>(MakeShimDevice({.seed = seed})));
}

class CacheKinds : public ::testing::TestWithParam<TestKind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, CacheKinds, ::testing::ValuesIn(kvcache::testing::kAllKinds),
                         [](const auto& test) { return kvcache::testing::NameOf(test.param); });

TEST_P(CacheKinds, RandomScriptsAgreeWithTheReferenceModel) {
  std::mt19937 random(5);
  for (int scripts = 0; scripts < 20; ++scripts) {
    DriverSetup setup = RandomSetup(GetParam(), random);
    setup.make_backend = [seed = random()] { return OnCuda(seed); };
    CacheDriver driver(setup);
    Script script;
    for (int i = 0; i < 100; ++i) {
      script.push_back(RandomStep(setup, driver, random));
      const auto difference = driver.Step(script.back());
      ASSERT_FALSE(difference.has_value()) << *difference << "\n"
                                           << ToText(setup) << "\n"
                                           << ToText(script);
    }
    const auto leak = driver.Finish();
    ASSERT_FALSE(leak.has_value()) << *leak << "\n" << ToText(setup) << "\n" << ToText(script);
  }
}

}  // namespace
}  // namespace kvcache::cuda::cache_test
