// Encoders in Hugging Face's layout, for tests: names of tensors, settings, and a WordPiece vocabulary.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "gguf/gguf.h"

namespace kvcache {

// Returns whether the architecture is bert, nomic-bert or modern-bert.
bool IsHfEncoder(const std::string& architecture);

// Returns the name of a tensor. `is_roberta`: of XLM-RoBERTa's heads.
std::string HfEncoderName(const std::string& architecture, const std::string& name,
                          bool is_roberta);

// Returns config.json without architectures.
nlohmann::json HfEncoderConfig(const GgufFile& file);

// Returns a tokenizer.json of `count` tokens: special ones, letters, "##" letters, and words.
nlohmann::json WordPieceJson(std::int64_t count);

}  // namespace kvcache
