// Reads the inputs of requests for embeddings and ranks, and encodes them.
//
// Thread safety: free functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kvcache_engine/embedder.h"
#include "server/request/fields.h"

namespace kvcache::server {

inline constexpr std::size_t kMaxEmbeddingInputs = 2048;  // of a request; documents too
inline constexpr std::size_t kMaxEmbeddingTokens = std::size_t{1} << 20;  // of all inputs

struct EmbeddingInputs {
  std::vector<std::vector<std::int32_t>> tokens{};
  bool too_long = false;  // the error of the fields is that an input has too many tokens
};

// How a field's inputs are read.
struct InputRules {
  const char* field = "input";
  bool takes_tokens = false;  // arrays of tokens, besides texts
  bool takes_empty = false;   // no input, and texts without a character
  LongInput when_long = LongInput::kRefuse;
};

// Reads a text or an array of texts, with `takes_tokens` also an array of tokens or an array of these.
EmbeddingInputs ReadEmbeddingInputs(const Embedder& embedder, Fields& fields,
                                    const InputRules& rules);

// Reads "dimensions"; 0: it is not given.
int ReadDimensions(const Embedder& embedder, Fields& fields);

struct NamedDocuments {
  const char* field;
  const std::vector<std::string>& texts;
};

// Encodes a query and documents. Errors are those of the field "FIELD[i]", or of "query" if it leaves no room for any
// document.
EmbeddingInputs EncodePairs(const Embedder& embedder, Fields& fields, const std::string& query,
                            const NamedDocuments& documents, LongInput when_long);

}  // namespace kvcache::server
