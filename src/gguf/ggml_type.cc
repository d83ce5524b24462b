#include "gguf/ggml_type.h"

#include <algorithm>

namespace kvcache {
namespace {

constexpr GgmlType Number(std::uint32_t number) {
  return static_cast<GgmlType>(number);
}

constexpr GgmlTypeInfo kTypes[] = {
    {GgmlType::kF32, "f32", 1, 4, DType::kF32},
    {GgmlType::kF16, "f16", 1, 2, DType::kF16},
    {GgmlType::kQ4_0, "q4_0", 32, 18, DType::kQ4_0},
    {GgmlType::kQ4_1, "q4_1", 32, 20, DType::kQ4_1},
    {GgmlType::kQ5_0, "q5_0", 32, 22, DType::kQ5_0},
    {GgmlType::kQ5_1, "q5_1", 32, 24, DType::kQ5_1},
    {GgmlType::kQ8_0, "q8_0", 32, 34, DType::kQ8_0},
    {Number(9), "q8_1", 32, 36, {}},
    {GgmlType::kQ2_K, "q2_k", 256, 84, DType::kQ2_K},
    {GgmlType::kQ3_K, "q3_k", 256, 110, DType::kQ3_K},
    {GgmlType::kQ4_K, "q4_k", 256, 144, DType::kQ4_K},
    {GgmlType::kQ5_K, "q5_k", 256, 176, DType::kQ5_K},
    {GgmlType::kQ6_K, "q6_k", 256, 210, DType::kQ6_K},
    {Number(15), "q8_k", 256, 292, {}},
    {GgmlType::kIQ2_XXS, "iq2_xxs", 256, 66, DType::kIQ2_XXS},
    {GgmlType::kIQ2_XS, "iq2_xs", 256, 74, DType::kIQ2_XS},
    {GgmlType::kIQ3_XXS, "iq3_xxs", 256, 98, DType::kIQ3_XXS},
    {GgmlType::kIQ1_S, "iq1_s", 256, 50, DType::kIQ1_S},
    {GgmlType::kIQ4_NL, "iq4_nl", 32, 18, DType::kIQ4_NL},
    {GgmlType::kIQ3_S, "iq3_s", 256, 110, DType::kIQ3_S},
    {GgmlType::kIQ2_S, "iq2_s", 256, 82, DType::kIQ2_S},
    {GgmlType::kIQ4_XS, "iq4_xs", 256, 136, DType::kIQ4_XS},
    {GgmlType::kI8, "i8", 1, 1, DType::kI8},
    {Number(25), "i16", 1, 2, {}},
    {GgmlType::kI32, "i32", 1, 4, DType::kI32},
    {GgmlType::kI64, "i64", 1, 8, {}},
    {Number(28), "f64", 1, 8, {}},
    {GgmlType::kIQ1_M, "iq1_m", 256, 56, DType::kIQ1_M},
    {GgmlType::kBF16, "bf16", 1, 2, DType::kBF16},
    {GgmlType::kTQ1_0, "tq1_0", 256, 54, DType::kTQ1_0},
    {GgmlType::kTQ2_0, "tq2_0", 256, 66, DType::kTQ2_0},
    {GgmlType::kMXFP4, "mxfp4", 32, 17, DType::kMXFP4},
    {GgmlType::kNVFP4, "nvfp4", 64, 36, DType::kNVFP4},
    {Number(41), "q1_0", 128, 18, {}},
    {Number(42), "q2_0", 64, 18, {}},
};

// FindGgmlType uses binary search, so the types ascend. A type with a DType repeats the sizes of
// its DTypeInfo; they must agree.
constexpr bool TableIsValid() {
  for (std::size_t i = 0; i < std::size(kTypes); ++i) {
    if (i > 0 && kTypes[i - 1].type >= kTypes[i].type) return false;
    if (!kTypes[i].dtype.has_value()) continue;
    const DTypeInfo info = InfoOf(*kTypes[i].dtype);
    if (info.block_size != kTypes[i].block_size) return false;
    if (info.block_bytes != kTypes[i].block_bytes) return false;
  }
  return true;
}
static_assert(TableIsValid());

}  // namespace

std::span<const GgmlTypeInfo> GgmlTypes() {
  return kTypes;
}

const GgmlTypeInfo* FindGgmlType(GgmlType type) {
  const auto* found = std::ranges::lower_bound(kTypes, type, {}, &GgmlTypeInfo::type);
  return found != std::end(kTypes) && found->type == type ? found : nullptr;
}

GgmlType GgmlTypeOf(DType dtype) {
  const auto* found = std::ranges::find(kTypes, std::optional(dtype), &GgmlTypeInfo::dtype);
  return found->type;
}

}  // namespace kvcache
