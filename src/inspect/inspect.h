// Describes a model file, as a struct, as JSON for programs and as text for people.
//
// Thread safety: free functions without state.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "gguf/gguf.h"
#include "kvcache/status.h"
#include "kvcache/types.h"
#include "model/layer_memory.h"
#include "model/load/hyperparameters.h"
#include "model/load/rope_scaling.h"

namespace kvcache {

struct InspectOptions {
  DType k_type = DType::kF16;
  DType v_type = DType::kF16;
};

// A value of the metadata. Numbers are converted to the widest type of their kind.
using MetadataElement = std::variant<bool, std::int64_t, std::uint64_t, double, std::string_view>;

struct MetadataValue {
  std::string_view key;
  bool is_array = false;
  GgufType element = GgufType::kUint8;
  std::uint64_t count = 1;             // elements
  std::vector<MetadataElement> first;  // the first 8 elements, or all; a scalar has one
};

// The tensors of one type.
struct TypeTotal {
  const GgmlTypeInfo* type = nullptr;
  std::int64_t tensors = 0;
  std::int64_t parameters = 0;
  std::int64_t bytes = 0;
};

struct TokenizerDescription {
  std::string kind;
  std::string description;
  std::int32_t tokens = 0;
  // kNoToken if there is none.
  std::int32_t bos = 0;
  std::int32_t eos = 0;
  std::int32_t eot = 0;
  std::int32_t unknown = 0;
  bool add_bos = false;
  bool add_eos = false;
  std::vector<std::string> notes;
};

// How conversations are written for the model, and its answers are read.
struct ChatDescription {
  std::string format;   // "the model's template (…)", or what is taken instead
  std::string dialect;  // its name
  bool calls = false;   // it is known how the model calls tools
  bool thinks = false;  // answers may begin with thoughts
};

struct CacheDescription {
  DType k_type = DType::kF16;
  DType v_type = DType::kF16;
  std::vector<LayerMemory> layers;
};

// Views point into the file, which must outlive the description.
struct ModelDescription {
  std::string path;
  std::uint32_t version = 0;  // of GGUF
  std::size_t files = 1;      // parts of a split model
  std::uint64_t size_bytes = 0;
  std::optional<std::string_view> architecture;
  std::optional<std::string_view> name;
  bool supported = false;  // the model can be loaded
  std::int64_t parameters = 0;
  // Empty if the architecture is not known or its layers' keys are broken.
  std::optional<Result<RopeSummary>> rope;
  std::optional<Result<ExpertParams>> experts;
  // Empty without a vocabulary. The error says why the vocabulary cannot be used.
  std::optional<Result<TokenizerDescription>> tokenizer;
  // Empty without a usable vocabulary. The error says why the template cannot be used.
  std::optional<Result<ChatDescription>> chat;
  std::vector<MetadataValue> metadata;  // by key
  std::vector<TypeTotal> types;         // the most bytes first
  std::span<const GgufTensor> tensors;  // in the order of the files
  // The error says why the model cannot be loaded, or not with these cache types.
  Result<CacheDescription> cache;
};

// Never fails: values that a broken or unknown file lacks are empty or an error.
ModelDescription DescribeModelFile(const GgufFile& file, const InspectOptions& options = {});

// Returns an object with:
//   path, format ("GGUF 3"), files, bytes, architecture, name, supported, parameters
//   rope      {scaling, factor, original_context}, or {"error": …}; null if not known
//   experts   {count, used, ffn}, or {"error": …}; null if there are none, or if not known
//   tokenizer {kind, description, tokens, bos, eos, eot, unknown, add_bos, add_eos, notes}, with
//             null for ids that are missing; or {"error": …}; null without a vocabulary
//   chat      {format, dialect, calls, thinks}, or {"error": …}; null without a usable vocabulary
//   metadata  {key: value}; an array is {"array": element type, "count": n, "first": [...]}
//   types     [{type, served, tensors, parameters, bytes}], the most bytes first
//   tensors   [{name, type, dims, bytes, offset}], in the file's order
//   cache     {k_type, v_type, bytes_per_token, bytes_per_sequence,
//              layers: [{layer, kind, bytes_per_token, bytes_per_sequence, kv_heads, k_dim, v_dim,
//                        and, depending on the kind: window and retained_tokens, chunk;
//                        v_in_k if the values are inside the keys;
//                        a recurrent layer has state_values instead of heads}]},
//             or {"error": …}
// Strings may hold bytes that are not UTF-8; dump with error_handler_t::replace.
nlohmann::json DescriptionJson(const ModelDescription& description);

enum class InspectDetail : std::uint8_t {
  kSummary,
  kTensors,  // also a line for each tensor
};

// Returns lines of text.
std::string DescriptionText(const ModelDescription& description, InspectDetail detail);

}  // namespace kvcache
