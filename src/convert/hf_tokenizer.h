// Converts tokenizer.json and the files beside it to the keys tokenizer.* of a GGUF file.
//
// Three kinds of vocabularies of model type BPE are known, and those of embedding/hf_word_vocabularies.h:
//
//   byte-level            "gpt2": tokens, merges, and the pre-tokenizer's name
//   with byte fallback    "llama": tokens and scores. SentencePiece merges the pair whose result has
//                         the best score, so scores follow from the order of the merges. A list of
//                         merges that no scores can express is refused.
//   with byte fallback,   "gemma4": tokens and merges
//   if the family asks
//
// The file has one token for each row of the embedding. Rows without a token get "[PAD7]", of type
// unused; tokens beyond the rows are dropped.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "convert/hf_config.h"
#include "convert/hf_directory.h"
#include "gguf/gguf_writer.h"
#include "kvcache/status.h"
#include "tokenizer/vocabulary.h"

namespace kvcache {

enum class HfFallbackKind : std::uint8_t { kScores, kMerges };

struct HfTokenizer {
  TokenizerData data;
  std::vector<std::string> notes;  // for people: what was left out
};

// Converts the JSON of tokenizer.json: everything but the ids of special tokens. `rows` is the
// number of rows of the embedding. Errors: kCorrupt and kUnsupported, with the key and its value.
Result<HfTokenizer> ConvertHfTokenizer(const nlohmann::json& tokenizer, std::int64_t rows,
                                       HfFallbackKind fallback);

struct HfTokenizerUse {
  std::int64_t rows = 0;  // of the embedding
  HfFallbackKind fallback = HfFallbackKind::kScores;
  bool embeds = false;  // texts have the special tokens of the post-processor around them
};

// Reads tokenizer.json, tokenizer_config.json, special_tokens_map.json, generation_config.json and
// chat_template.jinja, and sets the keys of `header`. `config` is config.json.
Status AddHfTokenizer(const HfDirectory& directory, const HfConfig& config,
                      const HfTokenizerUse& use, GgufHeader* header,
                      std::vector<std::string>* notes);

}  // namespace kvcache
