// Runs every kind of cache over the CUDA backend: random scripts against the reference models, and snapshots
// that go between this backend and the CPU's. The environment variables of tests/model/kinds_model_test.cc make scripts
// longer.
#include <algorithm>
#include <functional>
#include <memory>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/shim/shim_device.h"
#include "gtest/gtest.h"
#include "kvcache/causal_cache.h"
#include "kvcache/cpu_backend.h"
#include "kvcache/recurrent_cache.h"
#include "support/cache_harness.h"
#include "support/internal/kinds_random.h"
#include "support/internal/random_scripts.h"
#include "support/kernel_backend.h"

namespace kvcache::cuda::cache_test {
namespace {

using kvcache::testing::KernelBackend;
using kvcache::testing::PutContents;
using kvcache::testing::ReferenceBackend;
using kvcache::testing::StartForward;
using kvcache::testing::TestKind;
using kvcache::testing::TestToken;

std::unique_ptr<ReferenceBackend> OnCuda(unsigned seed) {
  return std::make_unique<KernelBackend>(
      std::make_unique<CudaBackend>(MakeShimDevice({.seed = seed})));
}

class CacheKinds : public ::testing::TestWithParam<TestKind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, CacheKinds, ::testing::ValuesIn(kvcache::testing::kAllKinds),
                         [](const auto& test) { return kvcache::testing::NameOf(test.param); });

TEST_P(CacheKinds, RandomScriptsAgreeWithTheReferenceModel) {
  if (MakeShimDevice()->info().name != "shim") {
    GTEST_SKIP() << "the reference models read the device's memory";
  }
  const auto difference =
      kvcache::testing::RunRandomScripts({.kind = GetParam(),
                                          .steps = kvcache::testing::ScriptSteps(2'000),
                                          .seed = kvcache::testing::ScriptSeed(),
                                          .make_backend = OnCuda});
  ASSERT_FALSE(difference.has_value()) << *difference;
}

// ---- Snapshots between the backends

constexpr int kLayers = 2;
constexpr int kStates = 48;

// Returns the index of the first byte that differs; -1: none.
std::int64_t FirstDifference(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  const auto [in_a, in_b] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return in_a == a.end() && in_b == b.end() ? -1 : in_a - a.begin();
}

// A cache over one backend.
class Side {
 public:
  using MakeCache = std::function<std::unique_ptr<Cache>(KvBackend& kernels)>;

  Side(std::unique_ptr<KvBackend> kernels, const MakeCache& make, const CacheOptions& options,
       const KvShape& shape)
      : kernels_(kernels.get()),
        backend_(std::move(kernels)),
        cache_(make(*kernels_)),
        shape_(shape) {
    const Status status = cache_->Init(backend_, options);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  ~Side() { cache_->Close(); }

  Cache& cache() { return *cache_; }
  CacheSnapshots& snapshots() { return *cache_->snapshots(); }

  // Appends tokens to a sequence, in all layers.
  void Forward(const std::vector<TestToken>& tokens) {
    ASSERT_TRUE(StartForward(*cache_, tokens).ok());
    for (int layer = 0; layer < kLayers; ++layer) {
      const Status put = PutContents(*cache_, tokens, layer, shape_);
      ASSERT_TRUE(put.ok()) << put.message();
    }
    if (cache_->Recurrent() == nullptr) return;
    const std::vector<float> state =
        kvcache::testing::StateContent(tokens.back().content, 2, 0, kStates);
    auto buffer = backend_.Allocate(kStates * sizeof(float)).value();
    const TensorView view = TensorView::Dense(buffer->data(), DType::kF32, kStates, 1);
    ASSERT_TRUE(backend_.CopyFromHost(std::as_bytes(std::span(state)), view).ok());
    const Status updated = cache_->Recurrent()->UpdateRecurrentState(2, view);
    ASSERT_TRUE(updated.ok()) << updated.message();
  }

  std::vector<std::byte> Export(const Snapshot& snapshot) {
    const auto size = snapshots().ExportSize(snapshot);
    EXPECT_TRUE(size.ok());
    std::vector<std::byte> bytes(static_cast<std::size_t>(*size));
    const Status status = snapshots().Export(snapshot, bytes);
    EXPECT_TRUE(status.ok()) << status.message();
    return bytes;
  }
  // Takes a snapshot of a whole sequence, lazy or in host memory.
  std::unique_ptr<Snapshot> Take(int sequence, bool materialized) {
    auto snapshot =
        snapshots().TakeSnapshot(SequenceId{sequence}, 0, cache_->Length(SequenceId{sequence}));
    EXPECT_TRUE(snapshot.ok()) << snapshot.status().message();
    if (materialized) {
      EXPECT_TRUE(snapshots().Materialize(**snapshot).ok());
    }
    return *std::move(snapshot);
  }
  // Restores exported bytes to a sequence, and returns what it exports then.
  std::vector<std::byte> RoundTrip(const std::vector<std::byte>& bytes, int sequence) {
    auto imported = snapshots().Import(bytes);
    EXPECT_TRUE(imported.ok()) << imported.status().message();
    if (!imported.ok()) return {};
    EXPECT_TRUE(cache_->Remove(SequenceId{sequence}, 0, kEndOfSequence).ok());
    const Status restored =
        snapshots().Restore(SequenceId{sequence}, imported->get(), (*imported)->end());
    EXPECT_TRUE(restored.ok()) << restored.message();
    return Export(*Take(sequence, false));
  }

 private:
  KvBackend* kernels_;
  KernelBackend backend_;
  std::unique_ptr<Cache> cache_;
  KvShape shape_;
};

const std::vector<float> kFrequencies = {1.0f, 0.25f, 0.03f, 0.001f};

CausalOptions WithShift(KvBackend& kernels, CausalOptions options) {
  options.shift_keys = [&kernels](int, const LayerKv& layer, std::span<const CellRun> cells,
                                  Position offset) {
    const RopeParams rope{.pairing = RopeParams::Pairing::kHalves,
                          .dims = 8,
                          .inv_freq = kFrequencies,
                          .first = layer.shape.v_in_k ? layer.shape.v_dim : 0};
    return kernels.ShiftKeys(layer, cells, offset, rope);
  };
  return options;
}

struct SnapshotCase {
  const char* name;
  DType k_type;
  DType v_type;
  KvShape shape{2, 64, 32};
};
void PrintTo(const SnapshotCase& test, std::ostream* out) {
  *out << test.name;
}

class SnapshotsBetweenBackends : public ::testing::TestWithParam<SnapshotCase> {
 protected:
  // Runs the same random calls on both sides, and compares the bytes of snapshots.
  void Run(const Side::MakeCache& make, bool goes_back) {
    CacheOptions options;
    options.k_type = GetParam().k_type;
    options.v_type = GetParam().v_type;
    options.max_sequences = 3;
    options.capacity = 96;
    options.max_batch = 32;
    const KvShape& shape = GetParam().shape;
    Side cpu(MakeCpuBackend({.threads = 1}).value(), make, options, shape);
    Side cuda(std::make_unique<CudaBackend>(MakeShimDevice()), make, options, shape);
    std::mt19937 random(11);
    std::uint32_t content = 1;
    const auto below = [&](int bound) { return static_cast<int>(random() % bound); };
    for (int step = 0; step < 24; ++step) {
      const int sequence = below(2);
      const Position length = cpu.cache().Length(SequenceId{sequence});
      const int what = below(6);
      if (length > 40 || (what == 0 && length > 0)) {
        // A part in the middle moves the keys behind it, where the kind can do that.
        const Position begin = goes_back ? below(length) : 0;
        const Position end = goes_back ? std::min(length, begin + 5) : kEndOfSequence;
        const Status a = cpu.cache().Remove(SequenceId{sequence}, begin, end);
        const Status b = cuda.cache().Remove(SequenceId{sequence}, begin, end);
        ASSERT_EQ(a.code(), b.code()) << a.message() << "; " << b.message();
        continue;
      }
      std::vector<TestToken> tokens;
      const int count = 1 + below(12);
      for (int i = 0; i < count; ++i) tokens.push_back({sequence, length + i, content++});
      cpu.Forward(tokens);
      cuda.Forward(tokens);
      if (HasFatalFailure()) return;
      const bool materialized = below(2) == 0;
      const std::vector<std::byte> here = cpu.Export(*cpu.Take(sequence, materialized));
      const std::vector<std::byte> there = cuda.Export(*cuda.Take(sequence, materialized));
      ASSERT_EQ(FirstDifference(here, there), -1) << "step " << step;
      // From one backend to the other, and out again.
      ASSERT_EQ(FirstDifference(cuda.RoundTrip(here, 2), here), -1) << "step " << step;
      ASSERT_EQ(FirstDifference(cpu.RoundTrip(there, 2), there), -1) << "step " << step;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Types, SnapshotsBetweenBackends,
                         ::testing::Values(SnapshotCase{"f16", DType::kF16, DType::kF16},
                                           SnapshotCase{"bf16_f32", DType::kBF16, DType::kF32},
                                           SnapshotCase{"q8_0", DType::kQ8_0, DType::kQ8_0},
                                           SnapshotCase{"q4_0_q8_0", DType::kQ4_0, DType::kQ8_0},
                                           SnapshotCase{"f16_q4_0", DType::kF16, DType::kQ4_0},
                                           SnapshotCase{"latents_q8_0", DType::kQ8_0, DType::kQ8_0,
                                                        KvShape{1, 96, 64, true}}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(SnapshotsBetweenBackends, OfFullCachesHaveTheSameBytes) {
  Run([](KvBackend& kernels) { return MakeCausalCache(WithShift(kernels, {})); }, true);
}
TEST_P(SnapshotsBetweenBackends, OfWindowsHaveTheSameBytes) {
  Run([](KvBackend& kernels) { return MakeCausalCache(WithShift(kernels, {.window = 12})); },
      false);
}
TEST_P(SnapshotsBetweenBackends, OfChunksHaveTheSameBytes) {
  Run([](KvBackend& kernels) { return MakeCausalCache(WithShift(kernels, {.chunk = 16})); }, false);
}
TEST_P(SnapshotsBetweenBackends, OfRecurrentCachesHaveTheSameBytes) {
  Run(
      [](KvBackend& kernels) {
        RecurrentOptions options;
        options.layers = {2};
        options.state_size = kStates;
        options.attention = WithShift(kernels, {});
        return MakeRecurrentCache(options);
      },
      false);
}

}  // namespace
}  // namespace kvcache::cuda::cache_test
