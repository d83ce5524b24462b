// Sequence ids, positions and element types, for all other headers.
//
// Thread safety: values; as thread-safe as an int.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

namespace kvcache {

// The id of one conversation or generation stream, in [0, max_sequences).
enum class SequenceId : std::int32_t {};
constexpr std::int32_t Index(SequenceId id) {
  return static_cast<std::int32_t>(id);
}

// A token's index in its sequence. A plain integer, because callers compute with it.
using Position = std::int32_t;
// The end of a range that extends to the end of the sequence.
inline constexpr Position kEndOfSequence = std::numeric_limits<Position>::max();

// Element types of tensors, in model files and in caches. Block types (see InfoOf) hold
// `block_size` values in `block_bytes` bytes; for plain types both describe one element.
enum class DType : std::uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kMXFP4,
  kI8,
  kI32,
  kQ2_K,
  kQ3_K,
  kIQ4_NL,
  kIQ4_XS,
  kIQ3_S,
  kIQ3_XXS,
  kIQ2_S,
  kIQ2_XS,
  kIQ2_XXS,
  kIQ1_S,
  kIQ1_M,
  kTQ1_0,
  kTQ2_0,
  kNVFP4,
};

struct DTypeInfo {
  std::string_view name;  // "f16", "q8_0"
  int block_size;         // values per block
  int block_bytes;        // bytes per block
};

constexpr DTypeInfo InfoOf(DType type) {
  switch (type) {
    case DType::kF32: return {"f32", 1, 4};
    case DType::kF16: return {"f16", 1, 2};
    case DType::kBF16: return {"bf16", 1, 2};
    // Blocks of 32: f16 scale, (f16 minimum,) quants; src/tensor/quantize_blocks.cc.
    case DType::kQ4_0: return {"q4_0", 32, 18};
    case DType::kQ4_1: return {"q4_1", 32, 20};
    case DType::kQ5_0: return {"q5_0", 32, 22};
    case DType::kQ5_1: return {"q5_1", 32, 24};
    case DType::kQ8_0: return {"q8_0", 32, 34};
    // Super-blocks of 256 that hold their scales; src/tensor/quantize_super_blocks.cc.
    case DType::kQ4_K: return {"q4_k", 256, 144};
    case DType::kQ5_K: return {"q5_k", 256, 176};
    case DType::kQ6_K: return {"q6_k", 256, 210};
    // Blocks of 32: a power-of-two scale, then 4-bit floats; src/tensor/quantize_mxfp4.cc.
    case DType::kMXFP4: return {"mxfp4", 32, 17};
    case DType::kI8: return {"i8", 1, 1};
    case DType::kI32: return {"i32", 1, 4};
    // Codes of 2 to 4 bits, or indices of codebooks; src/tensor/coded_block.h.
    case DType::kQ2_K: return {"q2_k", 256, 84};
    case DType::kQ3_K: return {"q3_k", 256, 110};
    case DType::kIQ4_NL: return {"iq4_nl", 32, 18};
    case DType::kIQ4_XS: return {"iq4_xs", 256, 136};
    case DType::kIQ3_S: return {"iq3_s", 256, 110};
    case DType::kIQ3_XXS: return {"iq3_xxs", 256, 98};
    case DType::kIQ2_S: return {"iq2_s", 256, 82};
    case DType::kIQ2_XS: return {"iq2_xs", 256, 74};
    case DType::kIQ2_XXS: return {"iq2_xxs", 256, 66};
    case DType::kIQ1_S: return {"iq1_s", 256, 50};
    case DType::kIQ1_M: return {"iq1_m", 256, 56};
    case DType::kTQ1_0: return {"tq1_0", 256, 54};
    case DType::kTQ2_0: return {"tq2_0", 256, 66};
    case DType::kNVFP4: return {"nvfp4", 64, 36};
  }
  return {"unknown", 1, 0};
}

// Returns the bytes of `count` contiguous values. REQUIRES: count is a multiple of the block size.
constexpr std::int64_t BytesOf(DType type, std::int64_t count) {
  const DTypeInfo info = InfoOf(type);
  return count / info.block_size * info.block_bytes;
}

}  // namespace kvcache
