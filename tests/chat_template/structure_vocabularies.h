// Vocabularies of every kind whose special tokens are marks, as control tokens and as
// user-defined ones, and text. Merging would lead to each of them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace kvcache {

// Structure, whatever its type.
const std::vector<std::string>& Marks();

// User-defined tokens that are text by their looks; some are structure to a template that writes
// them.
const std::vector<std::string>& Texts();

struct Named {
  std::string name;
  std::unique_ptr<Tokenizer> tokenizer;
};

const std::vector<Named>& Tokenizers();

}  // namespace kvcache
