// Prompts that let a model write what stands between two texts.
//
//   <prefix token> prefix <suffix token> suffix <middle token>
//
// The tokens are those of the model's file (tokenizer.ggml.fim_pre_token_id and its neighbors) or known ones by
// their texts, such as <|fim_prefix|> (SpecialIds). Answers end at its other tokens of this kind, such as the one
// that separates files.
//
// Thread safety: free functions.
#pragma once

#include <string>
#include <vector>

#include "kvcache/status.h"
#include "kvcache_engine/engine.h"
#include "server/models/text_service.h"

namespace kvcache::server {

// A file that stands before.
struct InfillFile {
  std::string name{};
  std::string text{};
};

struct InfillText {
  std::string prefix{};
  std::string suffix{};
  std::string begun{};              // how the middle begins
  std::vector<InfillFile> extra{};  // other files
};

// The rule that a request breaks with a model that has no such tokens.
inline constexpr const char* kNoInfill =
    "is not supported by this model: its vocabulary has no fill-in-the-middle tokens";

// Returns whether the model has the tokens.
bool CanInfill(const Engine& engine);

// Encodes the prompt. Errors: kInvalidArgument if the model has no such tokens; those of Engine::Tokenize.
Result<Prompt> InfillPrompt(const Engine& engine, const InfillText& text);

}  // namespace kvcache::server
