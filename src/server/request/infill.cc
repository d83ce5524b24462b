#include "server/request/infill.h"

#include <cstdint>
#include <string_view>

#include "base/errors.h"
#include "base/strings.h"
#include "tokenizer/tokenizer.h"

namespace kvcache::server {
namespace {

// Appends tokens and texts.
class PromptBuilder {
 public:
  explicit PromptBuilder(const Engine& engine) : engine_(engine) {}

  void Add(std::int32_t token) { tokens_.push_back(token); }
  Status Add(std::string_view text) {
    if (text.empty()) return Status::Ok();
    KVCACHE_ASSIGN_OR_RETURN(const auto tokens, engine_.Tokenize(text, TextPlace::kContinuation));
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    return Status::Ok();
  }
  std::vector<std::int32_t> Take() { return std::move(tokens_); }

 private:
  const Engine& engine_;
  std::vector<std::int32_t> tokens_;
};

// Writes other files as models with these tokens were trained: each behind its name, and a name before the text
// that is asked for. Models without them get the texts alone.
Status AddFiles(const SpecialIds& ids, const std::vector<InfillFile>& files,
                PromptBuilder& prompt) {
  if (files.empty()) return Status::Ok();
  const bool has_names = ids.fim_separator != kNoToken;
  if (ids.fim_repository != kNoToken) {
    prompt.Add(ids.fim_repository);
    KVCACHE_RETURN_IF_ERROR(prompt.Add("project\n"));
  }
  for (const InfillFile& file : files) {
    if (has_names) {
      prompt.Add(ids.fim_separator);
      KVCACHE_RETURN_IF_ERROR(prompt.Add(file.name + "\n"));
    }
    KVCACHE_RETURN_IF_ERROR(prompt.Add(file.text + "\n"));
  }
  if (!has_names) return Status::Ok();
  prompt.Add(ids.fim_separator);
  return prompt.Add("file\n");
}

}  // namespace

bool CanInfill(const Engine& engine) {
  const SpecialIds& ids = engine.tokenizer().vocabulary().ids();
  return ids.fim_prefix != kNoToken && ids.fim_suffix != kNoToken && ids.fim_middle != kNoToken;
}

Result<Prompt> InfillPrompt(const Engine& engine, const InfillText& text) {
  if (!CanInfill(engine)) {
    return InvalidArgument(StrCat("filling in the middle ", kNoInfill));
  }
  const Vocabulary& vocabulary = engine.tokenizer().vocabulary();
  const SpecialIds& ids = vocabulary.ids();
  PromptBuilder prompt(engine);
  if (vocabulary.add_bos() && ids.bos != kNoToken) prompt.Add(ids.bos);
  KVCACHE_RETURN_IF_ERROR(AddFiles(ids, text.extra, prompt));
  prompt.Add(ids.fim_prefix);
  KVCACHE_RETURN_IF_ERROR(prompt.Add(text.prefix));
  prompt.Add(ids.fim_suffix);
  KVCACHE_RETURN_IF_ERROR(prompt.Add(text.suffix));
  prompt.Add(ids.fim_middle);
  KVCACHE_RETURN_IF_ERROR(prompt.Add(text.begun));
  return Prompt{.tokens = prompt.Take()};
}

}  // namespace kvcache::server
