#include "backend/cuda/linear/kernel_table.h"

#include <algorithm>

#include "backend/cuda/linear/block_types.h"
#include "backend/cuda/linear/few_memory.h"
#include "backend/cuda/linear/many_memory.h"
#include "backend/cuda/linear/one_memory.h"

namespace kvcache::cuda::linear {
namespace {

constexpr int kRows = static_cast<int>(block::kPanelRows);

// The kernels of one block type.
struct BlockKernels {
  Kernel one;
  Kernel four;
  Kernel few;
  Kernel narrow;
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
    return {&kernels.one, kRows, 1, static_cast<std::size_t>(OneMemory<kType, 1>::kBytes)};
  }
  if (size.columns <= kFourColumns) {
    return {&kernels.four, kRows, kFourColumns,
            static_cast<std::size_t>(OneMemory<kType, kFourColumns>::kBytes)};
  }
  if (size.columns <= kTileColumns) {
    return {&kernels.few, kRows, kTileColumns,
            static_cast<std::size_t>(FewMemory<kType>::Bytes(static_cast<int>(size.columns)))};
  }
  const ProductKernel wide = ManyKernelOf<kType, WideShapeOf(kType)>(kernels.wide);
  if (2 * BlocksOf(wide, size) >= size.processors) return wide;
  return ManyKernelOf<kType, NarrowShapeOf(kType)>(kernels.narrow);
}

#define KVCACHE_LINEAR_KERNELS_OF(name, type)                                      \
  constexpr BlockKernels kernels_##name = {{"linear_one_" #name, kOneThreads},     \
                                           {"linear_four_" #name, kFourThreads},   \
                                           {"linear_few_" #name, kFewThreads},     \
                                           {"linear_narrow_" #name, kManyThreads}, \
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
