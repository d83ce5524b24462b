#include "backend/cuda/linear/kernel_table.h"

#include <algorithm>

#include "backend/cuda/linear/block_types.h"
#include "backend/cuda/linear/eight_memory.h"
#include "backend/cuda/linear/many_memory.h"
#include "backend/cuda/linear/one_memory.h"

namespace kvcache::cuda::linear {
namespace {

constexpr int kRows = static_cast<int>(block::kPanelRows);

// The kernels of one block type.
struct BlockKernels {
  Kernel one;
  Kernel eight;
  Kernel narrow;
  Kernel middle;
  Kernel wide;
};

template <DType kType, ManyShape kShape>
ProductKernel ManyKernelOf(const Kernel& kernel) {
  using Memory = ManyMemory<kType, kShape>;
  return {&kernel, Memory::kPanelsOfBlock * kRows, Memory::kTilesOfBlock * kTileColumns,
          static_cast<std::size_t>(Memory::kBytes)};
}

template <DType kType>
ProductKernel BlockKernelOf(const BlockKernels& kernels, const ProductSize& size) {
  if (size.columns == 1) {
    return {&kernels.one, kRows, 1, static_cast<std::size_t>(OneMemory<kType>::kBytes)};
  }
  if (size.columns <= kTileColumns) {
    return {&kernels.eight, EightMemory<kType>::kPanels * kRows, kTileColumns,
            static_cast<std::size_t>(EightMemory<kType>::kBytes)};
  }
  // The widest tiles that are not half empty, if there are enough of them. Blocks that are alone on their processors take
  // as long as pairs: 64 columns of Q4_K took 98 µs of an H200 as 112 wide tiles.
  const auto fills = [&](const ProductKernel& kernel, std::int64_t quarters) {
    return 2 * size.columns > kernel.columns &&
           4 * BlocksOf(kernel, size) >= quarters * size.processors;
  };
  const ProductKernel wide = ManyKernelOf<kType, WideShapeOf(kType)>(kernels.wide);
  if (fills(wide, 6)) return wide;
  // Two products of one launch often fill the processors that one leaves.
  const ProductKernel middle = ManyKernelOf<kType, kMiddleShape>(kernels.middle);
  if (fills(middle, 3)) return middle;
  return ManyKernelOf<kType, kNarrowShape>(kernels.narrow);
}

#define KVCACHE_LINEAR_KERNELS_OF(name, type)                                      \
  constexpr BlockKernels kernels_##name = {{"linear_one_" #name, kOneThreads},     \
                                           {"linear_eight_" #name, kEightThreads}, \
                                           {"linear_narrow_" #name, kManyThreads}, \
                                           {"linear_middle_" #name, kManyThreads}, \
                                           {"linear_wide_" #name, kManyThreads}};

KVCACHE_LINEAR_BLOCK_TYPES(KVCACHE_LINEAR_KERNELS_OF)

#undef KVCACHE_LINEAR_KERNELS_OF

// The kernels of a float type: one column, up to 8, more.
struct FloatKernels {
  Kernel one;
  Kernel few;
  Kernel many;
};

constexpr FloatKernels kF32 = {{"linear_one_f32", kFloatFewThreads},
                               {"linear_few_f32", kFloatFewThreads},
                               {"linear_many_f32", kFloatManyThreads}};
constexpr FloatKernels kF16 = {{"linear_one_f16", kFloatFewThreads},
                               {"linear_few_f16", kFloatFewThreads},
                               {"linear_many_f16", kFloatManyThreads}};
constexpr FloatKernels kBF16 = {{"linear_one_bf16", kFloatFewThreads},
                                {"linear_few_bf16", kFloatFewThreads},
                                {"linear_many_bf16", kFloatManyThreads}};

ProductKernel FloatKernelOf(const FloatKernels& kernels, std::int64_t columns) {
  constexpr int kFewRows = kFloatFewThreads / 4;
  if (columns == 1) return {&kernels.one, kFewRows, 1, 0};
  if (columns <= 8) return {&kernels.few, kFewRows, 8, 0};
  return {&kernels.many, kFloatManyRows, kFloatManyColumns, kFloatManyBytes};
}

}  // namespace

std::int64_t BlocksOf(const ProductKernel& kernel, const ProductSize& size) {
  return (size.outputs + kernel.rows - 1) / kernel.rows *
         ((size.columns + kernel.columns - 1) / kernel.columns);
}

ProductKernel ProductKernelOf(DType type, const ProductSize& size) {
  switch (KernelTypeOf(type)) {
    case DType::kF32: return FloatKernelOf(kF32, size.columns);
    case DType::kF16: return FloatKernelOf(kF16, size.columns);
    case DType::kBF16: return FloatKernelOf(kBF16, size.columns);
#define KVCACHE_LINEAR_CASE(name, type) \
  case type: return BlockKernelOf<type>(kernels_##name, size);
      KVCACHE_LINEAR_BLOCK_TYPES(KVCACHE_LINEAR_CASE)
#undef KVCACHE_LINEAR_CASE
    default: return {};
  }
}

}  // namespace kvcache::cuda::linear
