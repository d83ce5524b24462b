// The types of weights that a model is converted to: one type for all matrices, or a mixture, which
// gives some matrices more bits.
//
// The mixtures are llama.cpp's: q4_k_s, q4_k_m, q5_k_s, q5_k_m. The output matrix (the embedding if
// it is tied) gets q6_k. attn_v and ffn_down get q6_k (q5_k in q4_k_s) in some layers; models of 8
// experts get q8_0 for attn_k and attn_v. Rows that are not whole super-blocks fall back from q4_k
// to q5_0, from q5_k to q5_1, from q6_k to q8_0, and from q2_k, q3_k and iq4_xs to iq4_nl.
//
// Norms, biases, routers of experts, convolutions, and matrices whose rows are not whole blocks keep
// their type.
//
// Thread safety: free functions.
// Source: llama.cpp, src/llama-quant.cpp.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "convert/tensor_writer.h"
#include "kvcache/status.h"
#include "kvcache/types.h"

namespace kvcache {

enum class Mixture : std::uint8_t { kNone, kSmall, kMedium };

struct WeightScheme {
  DType type = DType::kF32;
  Mixture mixture = Mixture::kNone;
  std::uint32_t file_type = 0;  // general.file_type: llama.cpp's llama_ftype
};

// Returns the scheme of a name such as "q8_0" or "Q4_K_M". Errors: kInvalidArgument: the known
// names.
Result<WeightScheme> ParseWeightScheme(std::string_view name);

// Returns whether a scheme converts the tensor, by its name and rank.
bool IsQuantizable(std::string_view name, std::size_t rank);

// Sets the types of the matrices among `plans`, which are all tensors of a model. Matrices whose
// type is not f32, f16 or bf16 stay.
void ApplyScheme(const WeightScheme& scheme, std::vector<TensorPlan>* plans);

}  // namespace kvcache
