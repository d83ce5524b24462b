// Vocabularies of every kind. Their special tokens are marks and texts; the marks are control
// tokens in half of the vocabularies and user-defined tokens in the other half. Merges lead to each
// special token.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace kvcache {

// Returns the tokens that are structure, whatever their type.
const std::vector<std::string>& Marks();

// Returns user-defined tokens that look like text. Some of them are structure for templates that
// write them.
const std::vector<std::string>& Texts();

struct Named {
  std::string name;
  std::unique_ptr<Tokenizer> tokenizer;
};

const std::vector<Named>& Tokenizers();
// Returns the same for other marks. <s> and </s> must be among them.
std::vector<Named> TokenizersOf(const std::vector<std::string>& marks);

}  // namespace kvcache
