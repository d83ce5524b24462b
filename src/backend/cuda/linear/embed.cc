#include "backend/cpu/ops/elementwise_check.h"
#include "backend/cuda/kv/argument_list.h"
#include "backend/cuda/linear/block_types.h"
#include "backend/cuda/linear/embed_kernels.h"
#include "backend/cuda/linear/linear.h"
#include "tensor/codebooks.h"

namespace kvcache::cuda {
namespace {

const Kernel* EmbedKernelOf(DType type) {
#define KVCACHE_EMBED_CASE(name, dtype)                                           \
  case dtype: {                                                                   \
    static constexpr Kernel kernel{"linear_embed_" #name, linear::kEmbedThreads}; \
    return &kernel;                                                               \
  }
  switch (type) {
    KVCACHE_EMBED_CASE(f32, DType::kF32)
    KVCACHE_EMBED_CASE(f16, DType::kF16)
    KVCACHE_EMBED_CASE(bf16, DType::kBF16)
    KVCACHE_EMBED_CASE(iq2_s, DType::kIQ2_S)
    KVCACHE_EMBED_CASE(tq1_0, DType::kTQ1_0)
    KVCACHE_LINEAR_BLOCK_TYPES(KVCACHE_EMBED_CASE)
    default: return nullptr;
  }
#undef KVCACHE_EMBED_CASE
}

// The codebook of a type, or nothing.
std::span<const std::uint16_t> CodebookOf(DType type) {
  switch (type) {
    case DType::kIQ2_XXS: return codec::kIq2Xxs;
    case DType::kIQ2_XS: return codec::kIq2Xs;
    case DType::kIQ2_S: return codec::kIq2S;
    case DType::kIQ3_XXS: return codec::kIq3Xxs;
    case DType::kIQ3_S: return codec::kIq3S;
    case DType::kIQ1_S:
    case DType::kIQ1_M: return codec::kIq1;
    default: return {};
  }
}

using Tokens = decltype(linear::EmbedArgs::tokens);

Status LaunchEmbed(Device& device, CallMemory& memory, const TensorView& table,
                   const Tokens& tokens, const TensorView& y) {
  if (y.dims[1] == 0 || table.dims[0] == 0) return Status::Ok();
  linear::EmbedArgs args{};
  args.table = table.data;
  args.tokens = tokens;
  const std::span<const std::uint16_t> codebook = CodebookOf(table.dtype);
  if (!codebook.empty()) {
    KVCACHE_ASSIGN_OR_RETURN(args.codebook, memory.Upload(codebook));
  }
  args.y = reinterpret_cast<float*>(y.data);
  args.table_stride = table.stride_bytes[1];
  args.y_stride = y.stride_bytes[1];
  args.width = static_cast<std::int32_t>(table.dims[0]);
  args.parts = (args.width + linear::kEmbedThreads - 1) / linear::kEmbedThreads;
  return Launch(device, *EmbedKernelOf(table.dtype), {.x = y.dims[1] * args.parts}, args);
}

}  // namespace

Status EmbedRows(Device& device, CallMemory& memory, const TensorView& table,
                 const std::int32_t* rows, const TensorView& y) {
  return LaunchEmbed(device, memory, table, Tokens{rows, {}}, y);
}

Status Embed(Device& device, CallMemory& memory, const TensorView& table,
             std::span<const std::int32_t> tokens, const TensorView& y) {
  KVCACHE_RETURN_IF_ERROR(cpu::CheckEmbed(table, tokens, y));
  if (tokens.empty()) return Status::Ok();
  KVCACHE_ASSIGN_OR_RETURN(const Tokens list, MakeList<Tokens>(memory, tokens));
  return LaunchEmbed(device, memory, table, list, y);
}

}  // namespace kvcache::cuda
