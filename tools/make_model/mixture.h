// Which type each matrix of a file has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvcache/status.h"
#include "kvcache/types.h"

namespace kvcache::make_model {

enum class Mix : std::uint8_t {
  kPure,     // every matrix has the type
  kExperts,  // experts have it, other matrices q8_0: what mxfp4_moe files have
  kMedium,   // the matrices that suffer most have q6_k: what q4_k_m and q5_k_m files have
};

// What --type says.
struct WeightScheme {
  DType type = DType::kF32;
  Mix mix = Mix::kPure;
};

// kInvalidArgument, with the names that there are: a dtype's, or q4_k_m, q5_k_m, mxfp4_moe.
Result<WeightScheme> ParseWeightScheme(const std::string& name);

// The number in general.file_type that says of what type most tensors are.
std::uint32_t FileTypeOf(const WeightScheme& scheme);

// The type of matrix `name` with dims fastest first. Rows that are no whole super-blocks of 256
// get the fall-back of their type: q5_0 for q4_k, q5_1 for q5_k, q8_0 for q6_k. `tied`: the
// embedding is the output matrix.
//
// Source of the mixture's rule and of the fall-backs: llama.cpp's llama-quant.cpp.
struct MatrixPlace {
  std::string name;
  std::int64_t inputs = 0;
  int layers = 0;
  bool tied = false;
};
DType TypeOfMatrix(const WeightScheme& scheme, const MatrixPlace& matrix);

}  // namespace kvcache::make_model
