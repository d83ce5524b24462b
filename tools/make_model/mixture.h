// The type of each matrix in a file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvcache/status.h"
#include "kvcache/types.h"

namespace kvcache::make_model {

enum class Mix : std::uint8_t {
  kPure,     // every matrix has the type
  kExperts,  // experts have the type, other matrices q8_0, as in mxfp4_moe files
  kMedium,   // the most sensitive matrices have q6_k, as in q4_k_m and q5_k_m files
};

// The value of --type.
struct WeightScheme {
  DType type = DType::kF32;
  Mix mix = Mix::kPure;
};

// Parses a dtype's name, or q4_k_m, q5_k_m or mxfp4_moe. Errors: kInvalidArgument with the known
// names.
Result<WeightScheme> ParseWeightScheme(const std::string& name);

// Returns the number for general.file_type, the type of most tensors.
std::uint32_t FileTypeOf(const WeightScheme& scheme);

// A matrix, as far as its type depends on it.
struct MatrixPlace {
  std::string name;
  std::int64_t inputs = 0;  // values of a row
  int layers = 0;
  bool tied = false;  // the embedding is also the output matrix
};
// Returns the matrix's type. Rows that are not whole super-blocks of 256 values get their type's
// fallback: iq4_nl for q2_k, q3_k and iq4_xs, q5_0 for q4_k, q5_1 for q5_k, q8_0 for q6_k.
//
// Source of the mixtures and fallbacks: llama.cpp's llama-quant.cpp.
DType TypeOfMatrix(const WeightScheme& scheme, const MatrixPlace& matrix);

}  // namespace kvcache::make_model
