#include "backend/cpu/linear/weight_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace kvcache::cpu::weight_memory_test {
namespace {

constexpr std::size_t kKiB = std::size_t{1} << 10;
constexpr std::size_t kMiB = std::size_t{1} << 20;

// Pieces of every size: small, in a block, the rest of a block, a block, more than one.
TEST(WeightMemoryTest, PiecesAreAlignedZeroedAndApart) {
  WeightMemory memory;
  std::vector<WeightPiece> pieces;
  for (const std::size_t size :
       {std::size_t{1}, 64 * kKiB - 1, 64 * kKiB, 100 * kKiB + 3, 40 * kMiB, 25 * kMiB, 30 * kMiB,
        9 * kMiB, 64 * kMiB, 65 * kMiB + 1, 300 * kKiB}) {
    Result<WeightPiece> piece = memory.Make(size);
    ASSERT_TRUE(piece.ok()) << piece.status().message();
    EXPECT_EQ(piece->size_bytes(), size);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(piece->data()) % AlignedBuffer::kAlignmentBytes, 0u);
    pieces.push_back(std::move(*piece));
  }
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    std::byte* const end = pieces[i].data() + pieces[i].size_bytes();
    EXPECT_EQ(std::find_if(pieces[i].data(), end, [](std::byte b) { return b != std::byte{0}; }),
              end)
        << "piece " << i;
    std::fill(pieces[i].data(), end, std::byte{0xff});
  }
}

TEST(WeightMemoryTest, NeighboursShareABlock) {
  WeightMemory memory;
  const WeightPiece first = std::move(*memory.Make(3 * kMiB));
  const WeightPiece second = std::move(*memory.Make(100 * kKiB));
  EXPECT_EQ(first.data() + 3 * kMiB, second.data());
}

// A sanitizer reports the access if a block goes with the object, or with another piece.
TEST(WeightMemoryTest, PiecesOutliveTheObjectAndEachOther) {
  auto memory = std::make_unique<WeightMemory>();
  auto first = std::make_unique<WeightPiece>(std::move(*memory->Make(kMiB)));
  const WeightPiece second = std::move(*memory->Make(kMiB));
  const WeightPiece small = std::move(*memory->Make(1));
  memory.reset();
  first.reset();
  std::fill_n(second.data(), second.size_bytes(), std::byte{1});
  small.data()[0] = std::byte{1};
  EXPECT_EQ(second.data()[second.size_bytes() - 1], std::byte{1});
}

TEST(WeightMemoryTest, StartsAnewWhenAllPiecesAreDestroyed) {
  WeightMemory memory;
  for (int i = 0; i < 3; ++i) {
    const WeightPiece piece = std::move(*memory.Make(kMiB));
    EXPECT_EQ(piece.data()[0], std::byte{0});
    piece.data()[0] = std::byte{1};
  }
}

TEST(WeightMemoryTest, ReportsWhatDoesNotFitMemory) {
  WeightMemory memory;
  const Result<WeightPiece> piece = memory.Make(std::numeric_limits<std::size_t>::max() / 2);
  EXPECT_EQ(piece.status().code(), StatusCode::kOutOfMemory);
}

}  // namespace
}  // namespace kvcache::cpu::weight_memory_test
