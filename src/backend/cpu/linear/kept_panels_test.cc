// Weights over panels that a store kept have the bits of those that were packed, also if panels are damaged.
#include "backend/cpu/linear/kept_panels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/linear/block/linear_block.h"
#include "backend/cpu/linear/pack_weight.h"
#include "backend/cpu/testing.h"
#include "base/fnv.h"
#include "kvcache/panel_store.h"
#include "platform/aligned_buffer.h"

namespace kvcache::cpu::kept_panels_test {
namespace {

constexpr std::int64_t kInputs = 512;
constexpr std::int64_t kOutputs = 40;  // the last panel is not full
constexpr std::int64_t kMatrices = 3;
constexpr std::int64_t kTokens = 3;
constexpr std::size_t kPiece = 4096;

std::vector<DType> BlockTypes() {
  std::vector<DType> types;
  for (const DType dtype : testing::kWeightTypes) {
    if (block::IsBlockType(dtype)) types.push_back(dtype);
  }
  return types;
}

// Keeps the panels of one weight in memory, and hashes of its pieces.
class OneWeightStore final : public PanelStore {
 public:
  const std::byte* Find(const TensorView& /*w*/, std::size_t size_bytes) override {
    return memory_.size_bytes() == size_bytes && size_bytes > 0 ? memory_.data() : nullptr;
  }
  void Keep(const TensorView& /*w*/, std::shared_ptr<const std::byte> panels,
            std::size_t size_bytes) override {
    ++kept;
    memory_ = std::move(AlignedBuffer::Make(size_bytes)).value();
    std::memcpy(memory_.data(), panels.get(), size_bytes);
    for (std::int64_t i = 0; i < PiecesOf(memory_.data(), size_bytes).end; ++i) {
      sums_.push_back(SumOf(i));
    }
  }
  Pieces PiecesOf(const std::byte* panels, std::size_t size_bytes) const override {
    const auto begin = static_cast<std::size_t>(panels - memory_.data());
    return {static_cast<std::int64_t>(begin / kPiece),
            static_cast<std::int64_t>((begin + size_bytes + kPiece - 1) / kPiece)};
  }
  bool CheckPiece(std::int64_t piece) override {
    return SumOf(piece) == sums_[static_cast<std::size_t>(piece)];
  }

  std::span<std::byte> bytes() { return {memory_.data(), memory_.size_bytes()}; }
  std::uint64_t Sum() const { return SumOfBytes({memory_.data(), memory_.size_bytes()}); }
  int kept = 0;

 private:
  static std::uint64_t SumOfBytes(std::span<const std::byte> bytes) {
    Fnv1a sum;
    sum.Add(bytes);
    return sum.sum();
  }
  std::uint64_t SumOf(std::int64_t piece) const {
    const std::size_t begin = static_cast<std::size_t>(piece) * kPiece;
    return SumOfBytes({memory_.data() + begin, std::min(kPiece, memory_.size_bytes() - begin)});
  }

  AlignedBuffer memory_;
  std::vector<std::uint64_t> sums_;
};

class KeptPanelsTest : public ::testing::TestWithParam<DType> {
 protected:
  TensorView Stack() const {
    return TensorView::Dense(weights_.data(), GetParam(), kInputs, kOutputs, kMatrices);
  }

  // Makes the weight on a backend of its own, as another process would. All matrices are used twice.
  std::vector<float> Products(const std::shared_ptr<PanelStore>& store, int threads) {
    const auto backend = std::move(MakeCpuBackend({.threads = threads})).value();
    auto& user = dynamic_cast<PanelUser&>(*backend);
    user.UsePanels(store);
    const auto weight = std::move(backend->MakeLinear(Stack())).value();
    user.UsePanels(nullptr);
    EXPECT_EQ(weight->owned_bytes(), PanelBytesOf(Stack()));
    std::vector<float> y(kOutputs * kTokens * kMatrices);
    for (int pass = 0; pass < 2; ++pass) {
      for (std::int64_t matrix = 0; matrix < kMatrices; ++matrix) {
        const LinearOutput output{.weight = weight.get(),
                                  .y = TensorView::Dense(y.data() + matrix * kOutputs * kTokens,
                                                         DType::kF32, kOutputs, kTokens),
                                  .matrix = matrix};
        EXPECT_TRUE(
            backend
                ->Linear(TensorView::Dense(x_.data(), DType::kF32, kInputs, kTokens), {&output, 1})
                .ok());
      }
    }
    return y;
  }

  std::vector<std::byte> weights_ =
      testing::RandomWeights(GetParam(), kInputs* kOutputs* kMatrices, 7);
  std::vector<float> x_ = testing::RandomValues(kInputs * kTokens, 8);
};

TEST_P(KeptPanelsTest, HaveTheBitsOfPackedOnes) {
  const auto store = std::make_shared<OneWeightStore>();
  const std::vector<float> packed = Products(nullptr, 1);
  EXPECT_EQ(Products(store, 2), packed);
  EXPECT_EQ(store->kept, 1);
  EXPECT_EQ(Products(store, 2), packed);
  EXPECT_EQ(store->kept, 1);
}

TEST_P(KeptPanelsTest, DamagedOnesArePackedAgain) {
  const auto store = std::make_shared<OneWeightStore>();
  const std::vector<float> packed = Products(store, 2);
  for (const std::size_t at :
       {std::size_t{0}, store->bytes().size() / 2, store->bytes().size() - 1}) {
    store->bytes()[at] ^= std::byte{0x40};
    EXPECT_EQ(Products(store, 2), packed) << at;
    store->bytes()[at] ^= std::byte{0x40};
  }
}

INSTANTIATE_TEST_SUITE_P(Types, KeptPanelsTest, ::testing::ValuesIn(BlockTypes()),
                         [](const auto& test) { return std::string(InfoOf(test.param).name); });

TEST(KeptPanels, ALayoutHasItsVersion) {
  std::uint64_t sum = 0;
  for (const DType dtype : BlockTypes()) {
    OneWeightStore store;
    const auto weights = testing::RandomWeights(dtype, kInputs * kOutputs, 9);
    const TensorView w = TensorView::Dense(weights.data(), dtype, kInputs, kOutputs);
    ThreadPool pool(1);
    WeightMemory memory;
    const WeightPiece piece = std::move(PackWeight(pool, memory, w)).value();
    store.Keep(w, piece.Share(), piece.size_bytes());
    sum = sum * 31 + store.Sum();
  }
  EXPECT_EQ(kPanelLayout, 1u);
  EXPECT_EQ(sum, 4359701101255997311u)
      << "panels have other bytes: raise kPanelLayout, and set this sum";
}

TEST(KeptPanels, OnlyTheDamagedMatrixIsPackedAgain) {
  const auto store = std::make_shared<OneWeightStore>();
  const auto weights = testing::RandomWeights(DType::kQ8_0, kInputs * kOutputs * kMatrices, 7);
  const TensorView w =
      TensorView::Dense(weights.data(), DType::kQ8_0, kInputs, kOutputs, kMatrices);
  ThreadPool pool(2);
  WeightMemory memory;
  const WeightPiece piece = std::move(PackWeight(pool, memory, w)).value();
  store->Keep(w, piece.Share(), piece.size_bytes());
  const std::size_t bytes = piece.size_bytes() / kMatrices;
  const std::byte* const kept_bytes = store->bytes().data();
  KeptPanels kept(w, store, kept_bytes);
  store->bytes()[bytes + bytes / 2] ^= std::byte{1};
  for (std::int64_t matrix = 0; matrix < kMatrices; ++matrix) {
    ASSERT_TRUE(kept.Check(pool, matrix).ok());
    const std::size_t at = static_cast<std::size_t>(matrix) * bytes;
    EXPECT_EQ(kept.data(matrix) == kept_bytes + at, matrix != 1);
    EXPECT_EQ(std::memcmp(kept.data(matrix), piece.data() + at, bytes), 0) << matrix;
  }
}

TEST(KeptPanels, ADamagedOneWithoutMemoryOrWithRefusedScalesIsAnError) {
  const auto store = std::make_shared<OneWeightStore>();
  auto weights = testing::RandomWeights(DType::kQ8_0, kInputs * kOutputs, 7);
  const TensorView w = TensorView::Dense(weights.data(), DType::kQ8_0, kInputs, kOutputs);
  ThreadPool pool(2);
  WeightMemory memory;
  const WeightPiece piece = std::move(PackWeight(pool, memory, w)).value();
  store->Keep(w, piece.Share(), piece.size_bytes());
  KeptPanels kept(w, store, store->bytes().data());
  EXPECT_FALSE(kept.IsChecked(0));
  store->bytes()[5] ^= std::byte{1};
  weights[1] = std::byte{0x7c};  // infinity
  weights[0] = std::byte{0};
  EXPECT_EQ(kept.Check(pool, 0).code(), StatusCode::kCorrupt);
  EXPECT_FALSE(kept.IsChecked(0));
  weights[1] = std::byte{0x3c};
  EXPECT_TRUE(kept.Check(pool, 0).ok());
  EXPECT_TRUE(kept.IsChecked(0));
}

}  // namespace
}  // namespace kvcache::cpu::kept_panels_test
