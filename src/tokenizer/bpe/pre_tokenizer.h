// The pre-tokenizers that files name (`tokenizer.ggml.pre`). Each one defines how text is cut into
// words before merging, and holds the settings that llama.cpp derives from the name.
//
// To add one: find its expressions in llama.cpp (src/llama-vocab.cpp, LLAMA_VOCAB_PRE_TYPE_…);
// write them as stages in pre_tokenizer.cc (pre_scan.h has the parts; a new part is a function
// there); add the row with its name and flags; add the name to the oracle's vocabularies
// (tests/oracle/tokenizer/bpe_vocabularies.cc), which then checks that all ids are equal.
//
// Thread safety: free functions.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "kvcache/status.h"
#include "tokenizer/bpe/pre_scan.h"

namespace kvcache {

struct PreTokenizer {
  std::string_view name;
  std::span<const CutStage> stages;
  bool ignore_merges = false;  // a word that is a token becomes that token without merging
  bool add_bos = false;        // the default if the file has no add_bos_token
  bool clean_spaces = true;    // see DecodeOptions
  bool composes = false;       // the default if the file does not say whether texts become NFC
};

// Returns all pre-tokenizers, for tests.
std::span<const PreTokenizer> PreTokenizers();

// Finds a pre-tokenizer by name. "" means "default": older files have no name.
// Errors: kUnsupported: an unknown name; the message lists all names.
Result<const PreTokenizer*> FindPreTokenizer(std::string_view name);

}  // namespace kvcache
