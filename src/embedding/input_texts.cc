#include "embedding/input_texts.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/longest_beginning.h"
#include "base/strings.h"

namespace kvcache {
namespace {

constexpr std::string_view kTemplateKey = "tokenizer.chat_template.rerank";
constexpr std::string_view kQuery = "{query}";
constexpr std::string_view kDocument = "{document}";

// Whether a file that does not say it has two separators between query and document, as llama.cpp takes it to have.
Result<bool> HasTwoByDefault(const GgufFile& file, const Tokenizer& tokenizer) {
  if (tokenizer.KindName() == "unigram") return true;
  KVCACHE_ASSIGN_OR_RETURN(const std::string_view pre, file.GetStringOr("tokenizer.ggml.pre", ""));
  return pre == "jina-v1-en" || pre == "jina-v2-code" || pre == "roberta-bpe";
}

}  // namespace

Result<InputTexts> InputTexts::Make(const GgufFile& file, const Tokenizer& tokenizer,
                                    int max_tokens) {
  InputTexts texts(tokenizer, max_tokens);
  const auto added = [&](AddToken bos, AddToken eos) {
    return tokenizer.Encode("", {.add_bos = bos, .add_eos = eos});
  };
  KVCACHE_ASSIGN_OR_RETURN(texts.begin_, added(AddToken::kPerFile, AddToken::kNo));
  KVCACHE_ASSIGN_OR_RETURN(texts.end_, added(AddToken::kNo, AddToken::kPerFile));
  KVCACHE_ASSIGN_OR_RETURN(texts.pair_end_, added(AddToken::kNo, AddToken::kYes));
  KVCACHE_ASSIGN_OR_RETURN(const bool by_default, HasTwoByDefault(file, tokenizer));
  KVCACHE_ASSIGN_OR_RETURN(const bool twice,
                           file.GetBoolOr("tokenizer.ggml.add_sep_token", by_default));
  texts.separators_ = texts.pair_end_;
  if (twice && tokenizer.KindName() != "WordPiece") {
    texts.separators_.insert(texts.separators_.end(), texts.pair_end_.begin(),
                             texts.pair_end_.end());
  }
  KVCACHE_ASSIGN_OR_RETURN(const std::string_view pattern, file.GetStringOr(kTemplateKey, ""));
  texts.template_ = std::string(pattern);
  if (pattern.empty()) return texts;
  for (const std::string_view name : {kQuery, kDocument}) {
    if (pattern.find(name) != std::string_view::npos) continue;
    return Corrupt(StrCat(kTemplateKey, " has no ", name));
  }
  return texts;
}

Status InputTexts::TooLong(std::size_t tokens) const {
  return InvalidArgument(
      StrCat("the input has ", tokens, " tokens; the model reads at most ", max_tokens_));
}

Result<InputTexts::Tokens> InputTexts::Plain(std::string_view text) const {
  return tokenizer_->Encode(text, {.add_bos = AddToken::kNo, .add_eos = AddToken::kNo});
}

Result<std::vector<std::int32_t>> InputTexts::Encode(std::string_view text,
                                                     LongInput when_long) const {
  KVCACHE_ASSIGN_OR_RETURN(Tokens tokens, tokenizer_->Encode(text));
  if (tokens.empty()) return InvalidArgument("the input has no tokens");
  if (tokens.size() <= max_tokens_) return tokens;
  if (when_long == LongInput::kRefuse || end_.size() > max_tokens_) return TooLong(tokens.size());
  tokens.resize(max_tokens_);
  std::ranges::copy(end_, tokens.end() - std::ssize(end_));
  return tokens;
}

Result<std::vector<std::int32_t>> InputTexts::EncodePair(std::string_view query,
                                                         std::string_view document,
                                                         LongInput when_long) const {
  return template_.empty() ? EncodeSeparated(query, document, when_long)
                           : EncodeTemplate(query, document, when_long);
}

Result<std::shared_ptr<const InputTexts::Tokens>> InputTexts::Query(std::string_view query) const {
  {
    const std::lock_guard lock(last_query_->mutex);
    if (last_query_->tokens != nullptr && last_query_->text == query) return last_query_->tokens;
  }
  KVCACHE_ASSIGN_OR_RETURN(Tokens tokens, Plain(query));
  auto shared = std::make_shared<const Tokens>(std::move(tokens));
  std::string text(query);
  const std::lock_guard lock(last_query_->mutex);
  last_query_->text = std::move(text);
  last_query_->tokens = shared;
  return shared;
}

Result<InputTexts::Tokens> InputTexts::EncodeSeparated(std::string_view query,
                                                       std::string_view document,
                                                       LongInput when_long) const {
  KVCACHE_ASSIGN_OR_RETURN(const std::shared_ptr<const Tokens> asked, Query(query));
  KVCACHE_ASSIGN_OR_RETURN(Tokens text, Plain(document));
  const std::size_t around = begin_.size() + asked->size() + separators_.size() + pair_end_.size();
  if (around + text.size() > max_tokens_) {
    if (when_long == LongInput::kRefuse || around >= max_tokens_) {
      return TooLong(around + text.size());
    }
    text.resize(max_tokens_ - around);
  }
  Tokens tokens;
  for (const Tokens* part :
       {&begin_, asked.get(), &separators_, &std::as_const(text), &pair_end_}) {
    tokens.insert(tokens.end(), part->begin(), part->end());
  }
  return tokens;
}

// Query and document are typed text: the text of a special token in them is no special token.
Result<InputTexts::Tokens> InputTexts::FillTemplate(std::string_view query,
                                                    std::string_view document) const {
  std::string text;
  std::vector<TextRange> typed;
  std::string_view rest = template_;
  while (!rest.empty()) {
    const std::size_t at_query = rest.find(kQuery);
    const std::size_t at = std::min(at_query, rest.find(kDocument));
    text += rest.substr(0, at);
    if (at == std::string_view::npos) break;
    const bool is_query = at == at_query;
    const std::string_view value = is_query ? query : document;
    if (!value.empty()) typed.push_back({text.size(), text.size() + value.size()});
    text += value;
    rest.remove_prefix(at + (is_query ? kQuery : kDocument).size());
  }
  KVCACHE_ASSIGN_OR_RETURN(MarkedTokens marked, tokenizer_->EncodeMarked(text, typed));
  return std::move(marked.tokens);
}

Result<InputTexts::Tokens> InputTexts::EncodeTemplate(std::string_view query,
                                                      std::string_view document,
                                                      LongInput when_long) const {
  KVCACHE_ASSIGN_OR_RETURN(Tokens tokens, FillTemplate(query, document));
  if (tokens.size() <= max_tokens_) return tokens;
  if (when_long == LongInput::kRefuse) return TooLong(tokens.size());
  KVCACHE_ASSIGN_OR_RETURN(const Tokens around, FillTemplate(query, ""));
  if (around.size() >= max_tokens_) return TooLong(tokens.size());
  const auto count = [&](std::string_view beginning) -> Result<std::size_t> {
    KVCACHE_ASSIGN_OR_RETURN(const Tokens filled, FillTemplate(query, beginning));
    return filled.size();
  };
  KVCACHE_ASSIGN_OR_RETURN(
      const std::string_view kept,
      LongestBeginning(document, around.size(), tokens.size(), max_tokens_, count));
  return FillTemplate(query, kept);
}

}  // namespace kvcache
