// The element types of GGUF files.
//
// Every known type has a name and a size, so that every file can be checked and described. Kernels
// exist only for types with a DType. To support another type, add a DType and set that column of
// its row in ggml_type.cc.
//
// Source: ggml's enum ggml_type and gguf-py's table of quantisation sizes. Missing numbers were
// withdrawn there.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "kvcache/types.h"

namespace kvcache {

// A type's number in a file.
enum class GgmlType : std::uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ2_XXS = 16,
  kIQ2_XS = 17,
  kIQ3_XXS = 18,
  kIQ1_S = 19,
  kIQ4_NL = 20,
  kIQ3_S = 21,
  kIQ2_S = 22,
  kIQ4_XS = 23,
  kI8 = 24,
  kI32 = 26,
  kI64 = 27,
  kIQ1_M = 29,
  kBF16 = 30,
  kTQ1_0 = 34,
  kTQ2_0 = 35,
  kMXFP4 = 39,
  kNVFP4 = 40,
};

struct GgmlTypeInfo {
  GgmlType type;
  std::string_view name;       // ggml's name in lower case, as DTypeInfo's: "q4_k"
  std::int64_t block_size;     // values per block
  std::int64_t block_bytes;    // bytes per block
  std::optional<DType> dtype;  // empty: not supported
};

// Returns all known types, by ascending number.
std::span<const GgmlTypeInfo> GgmlTypes();

// Returns nullptr for an unknown number.
const GgmlTypeInfo* FindGgmlType(GgmlType type);

// Returns the type that files use for `dtype`; every DType has one.
GgmlType GgmlTypeOf(DType dtype);

}  // namespace kvcache
