// Describes a model file, as JSON for programs and as text for people.
//
// Thread safety: free functions without state.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "gguf/gguf.h"
#include "kvcache/types.h"

namespace kvcache {

struct InspectOptions {
  DType k_type = DType::kF16;
  DType v_type = DType::kF16;
};

// An object with:
//   path, format ("GGUF 3"), bytes, architecture, name, supported: does it load, parameters
//   rope      {scaling, factor, original_context}, or {"error": …}; null if not known
//   experts   {count, used, ffn}, or {"error": …}; null if there are none, or if not known
//   tokenizer {kind, description, tokens, bos, eos, eot, unknown, add_bos, add_eos}, ids null
//             where there is none; {"error": why it can not be used}; null without a vocabulary
//   metadata  {key: value}; an array as {"array": element type, "count": n, "first": [...]}
//   types     [{type, served, tensors, parameters, bytes}], the most bytes first
//   tensors   [{name, type, dims, bytes, offset}], in the file's order
//   cache     {k_type, v_type, bytes_per_token, bytes_per_sequence: what does not grow,
//              layers: [{layer, kind, kv_heads, k_dim, v_dim, bytes_per_token,
//                        bytes_per_sequence, and of its kind: window and kept, chunk;
//                        v_in_k where the value is in the key;
//                        a recurrent layer has state_values instead of heads}]},
//             or {"error": why the model cannot be loaded}
// Never fails: values that a broken or unknown file lacks are null or an error. Strings may hold
// bytes that are not UTF-8; dump with error_handler_t::replace.
nlohmann::json DescribeModelFile(const GgufFile& file, const InspectOptions& options = {});

enum class InspectDetail : std::uint8_t {
  kSummary,
  kTensors,  // a line for each tensor as well
};

// Formats a description of DescribeModelFile() as lines of text.
std::string DescriptionText(const nlohmann::json& description, InspectDetail detail);

}  // namespace kvcache
