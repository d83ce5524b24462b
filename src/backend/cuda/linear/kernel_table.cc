#include "backend/cuda/linear/kernel_table.h"

#include <algorithm>

#include "backend/cuda/linear/block_types.h"
#include "backend/cuda/linear/few_memory.h"
#include "backend/cuda/linear/many_memory.h"

namespace kvcache::cuda::linear {
namespace {

constexpr int kRows = static_cast<int>(block::kPanelRows);

// The kernels of one block type.
struct BlockKernels {
  Kernel few;
  Kernel many;
};

template <DType kType>
ProductKernel BlockKernelOf(const BlockKernels& kernels, std::int64_t columns) {
  if (columns <= kTileColumns) {
    return {&kernels.few, kRows, kTileColumns,
            static_cast<std::size_t>(FewMemory<kType>::Bytes(static_cast<int>(columns)))};
  }
  using Many = ManyMemory<kType>;
  return {&kernels.many, Many::kPanelsOfBlock * kRows, Many::kTilesOfBlock * kTileColumns,
          static_cast<std::size_t>(Many::kBytes)};
}

#define KVCACHE_LINEAR_KERNELS_OF(name, type)                                  \
  constexpr BlockKernels kernels_##name = {{"linear_few_" #name, kFewThreads}, \
                                           {"linear_many_" #name, kManyThreads}};

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

ProductKernel ProductKernelOf(DType type, std::int64_t columns) {
  switch (KernelTypeOf(type)) {
    case DType::kF32: return FloatKernelOf(kF32, columns);
    case DType::kF16: return FloatKernelOf(kF16, columns);
    case DType::kBF16: return FloatKernelOf(kBF16, columns);
#define KVCACHE_LINEAR_CASE(name, type) \
  case type: return BlockKernelOf<type>(kernels_##name, columns);
      KVCACHE_LINEAR_BLOCK_TYPES(KVCACHE_LINEAR_CASE)
#undef KVCACHE_LINEAR_CASE
    default: return {};
  }
}

}  // namespace kvcache::cuda::linear
