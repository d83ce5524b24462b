// WordPiece and unigram vocabularies of a tokenizer.json → those of a GGUF file (kinds "bert" and "t5").
//
//   WordPiece   "##ing" → "ing", "the" → "\u2581the"; normalizer BertNormalizer
//   unigram     tokens and scores; normalizer Precompiled, and spaces that become U+2581
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "convert/hf_tokenizer.h"
#include "kvcache/status.h"

namespace kvcache {

// The same as ConvertHfTokenizer for a model of these types. REQUIRES: 1 or more rows.
Result<HfTokenizer> ConvertHfWordPiece(const nlohmann::json& tokenizer, std::int64_t rows);
Result<HfTokenizer> ConvertHfUnigram(const nlohmann::json& tokenizer, std::int64_t rows);

}  // namespace kvcache
