// Compares prompts of a template with foreign text that looks like structure, and with harmless letters.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "chat_template/chat_format.h"
#include "structure_cases.h"
#include "structure_vocabularies.h"

namespace kvcache::structure_test {

struct Family {
  std::string name;
  const std::vector<Named>* tokenizers = nullptr;
  std::vector<ChatFormat> formats{};                 // by tokenizer
  std::vector<std::vector<std::int32_t>> counted{};  // by tokenizer: tokens that are structure
};

// Returns the tokens of a vocabulary that are structure, and those of texts that a template writes.
std::vector<std::int32_t> Counted(const Tokenizer& tokenizer,
                                  const std::vector<std::string>& literals);

struct Totals {
  int turns = 0;
  int prompts = 0;
  int other_branch = 0;
};

ChatInput Make(const Talk& talk, const Text& text);
std::string Letters(std::size_t bytes);

// Compares the two prompts for `tokenizers` of the tokenizers, others in each call. With
// KVCACHE_SLOW_TESTS it compares them for all tokenizers.
void Compare(const Family& family, const Talk& talk, const std::string& what, const Text& attack,
             const Text& harmless, std::size_t tokenizers, Totals* totals);

// Compares prompts with a text in all places at once, and cut into two parts in neighbouring places.
void CompareEverywhere(const Family& family, const Talk& talk, const std::string& text,
                       Totals* totals);

}  // namespace kvcache::structure_test
