// Texts → the tokens that an embedding model reads.
//
//   a text       what the vocabulary puts in front of it, the text, what it puts behind it
//   a pair       the file's template for reranking (tokenizer.chat_template.rerank) with {query} and {document};
//                without one, query and document with the vocabulary's separators:
//                  WordPiece          [CLS] query [SEP] document [SEP]
//                  unigram (XLM-R)    <s> query </s> </s> document </s>
//                tokenizer.ggml.add_sep_token says whether two separators are between them; without it two are for
//                unigram, Jina Reranker 1 and RoBERTa, whose older files do not have the key
//
// Source: the published pairs of BERT and XLM-RoBERTa; the template's form as llama.cpp has it
// (tools/server, format_prompt_rerank).
// Thread safety: const calls may run concurrently.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/gguf.h"
#include "kvcache/status.h"
#include "kvcache_engine/embedder.h"
#include "tokenizer/tokenizer.h"

namespace kvcache {

class InputTexts {
 public:
  // `tokenizer` must outlive the object. No text has more than `max_tokens` tokens. Errors: those of the file's
  // keys.
  static Result<InputTexts> Make(const GgufFile& file, const Tokenizer& tokenizer, int max_tokens);

  // Errors: see Embedder::EncodeInput.
  Result<std::vector<std::int32_t>> Encode(std::string_view text, LongInput when_long) const;
  Result<std::vector<std::int32_t>> EncodePair(std::string_view query, std::string_view document,
                                               LongInput when_long) const;

 private:
  using Tokens = std::vector<std::int32_t>;

  struct LastQuery {
    std::mutex mutex;
    std::string text;                      // guarded by mutex, as its tokens
    std::shared_ptr<const Tokens> tokens;  // null: there was none
  };

  InputTexts(const Tokenizer& tokenizer, int max_tokens)
      : tokenizer_(&tokenizer),
        max_tokens_(static_cast<std::size_t>(max_tokens)),
        last_query_(std::make_unique<LastQuery>()) {}

  Status TooLong(std::size_t tokens) const;
  Result<Tokens> Plain(std::string_view text) const;
  // Returns the tokens of a query. Those of the last one are kept: its pairs come one after another.
  Result<std::shared_ptr<const Tokens>> Query(std::string_view query) const;
  Result<Tokens> EncodeSeparated(std::string_view query, std::string_view document,
                                 LongInput when_long) const;
  Result<Tokens> EncodeTemplate(std::string_view query, std::string_view document,
                                LongInput when_long) const;
  Result<Tokens> FillTemplate(std::string_view query, std::string_view document) const;

  const Tokenizer* tokenizer_;
  std::size_t max_tokens_;
  Tokens begin_, end_;    // what a text has in front of it and behind it
  Tokens separators_;     // between query and document
  Tokens pair_end_;       // behind a document
  std::string template_;  // empty: none
  std::unique_ptr<LastQuery> last_query_;
};

}  // namespace kvcache
