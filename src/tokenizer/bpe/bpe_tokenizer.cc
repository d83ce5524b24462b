#include "tokenizer/bpe/bpe_tokenizer.h"

#include <utility>

#include "base/errors.h"
#include "tokenizer/bpe/byte_alphabet.h"
#include "tokenizer/unicode/unicode_compose.h"
#include "tokenizer/unicode/utf8_stream.h"

namespace kvcache {
namespace {

VocabularyDefaults Defaults(const PreTokenizer& pre) {
  return {.ids = {}, .add_bos = pre.add_bos, .add_eos = false, .add_space_prefix = false};
}

// Returns the bytes of each token; empty if text cannot become it.
Result<TextIndex> MergeWords(const Vocabulary& vocabulary) {
  std::vector<std::string> words(static_cast<std::size_t>(vocabulary.size()));
  for (std::int32_t token = 0; token < vocabulary.size(); ++token) {
    if (!vocabulary.CanBeMerged(token)) continue;
    std::string& word = words[static_cast<std::size_t>(token)];
    if (!AppendBytesOf(vocabulary.text(token), &word)) word.clear();
  }
  return TextIndex::Make(words);
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> BpeTokenizer::Make(const TokenizerData& data) {
  KVCACHE_ASSIGN_OR_RETURN(const PreTokenizer* pre, FindPreTokenizer(data.pre));
  if (data.merges.empty()) {
    return Corrupt("the vocabulary of kind 'gpt2' has no merges; needs at least one");
  }
  KVCACHE_ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::Make(data, Defaults(*pre)));
  KVCACHE_ASSIGN_OR_RETURN(TextIndex words, MergeWords(vocabulary));
  KVCACHE_ASSIGN_OR_RETURN(BpeMerges merges, BpeMerges::Make(data.merges, words));
  return std::unique_ptr<Tokenizer>(new BpeTokenizer(std::move(vocabulary), *pre,
                                                     data.compose.value_or(pre->composes),
                                                     std::move(words), std::move(merges)));
}

BpeTokenizer::BpeTokenizer(Vocabulary vocabulary, const PreTokenizer& pre, bool composes,
                           TextIndex words, BpeMerges merges)
    : Tokenizer(std::move(vocabulary)),
      pre_(pre),
      composes_(composes),
      kind_name_("byte-level BPE (" + std::string(pre.name) + ")"),
      words_(std::move(words)),
      merges_(std::move(merges)),
      self_encoding_(static_cast<std::size_t>(this->vocabulary_size())) {}

void BpeTokenizer::EncodePlain(std::string_view text, std::vector<std::int32_t>* out) const {
  std::string repaired;
  text = RepairUtf8(text, &repaired);
  std::string composed;
  if (composes_) text = ComposeText(text, &composed);
  BpeMerge merge(merges_);
  CutText(pre_.stages, text.data(), text.data() + text.size(),
          [&](std::string_view word) { EncodeWord(word, &merge, out); });
}

void BpeTokenizer::EncodeWord(std::string_view word, BpeMerge* merge,
                              std::vector<std::int32_t>* out) const {
  const std::int32_t token = words_.Find(word);
  if (token == kNoToken) return EncodeByMerging(word, merge, out);
  auto& memo = self_encoding_[static_cast<std::size_t>(token)];
  if (pre_.ignore_merges || memo.load(std::memory_order_relaxed) == kEncodesToItself) {
    return out->push_back(token);
  }
  const std::size_t before = out->size();
  EncodeByMerging(word, merge, out);
  const bool encodes_to_itself = out->size() == before + 1 && out->back() == token;
  memo.store(encodes_to_itself ? kEncodesToItself : kEncodesToOthers, std::memory_order_relaxed);
}

void BpeTokenizer::EncodeByMerging(std::string_view word, BpeMerge* merge,
                                   std::vector<std::int32_t>* out) const {
  merge->Run(word, [&](BpeSymbol symbol) {
    merges_.ForEachToken(symbol, [&](std::int32_t token) {
      if (token == kNoToken) token = unknown();
      if (token != kNoToken) out->push_back(token);
    });
  });
}

void BpeTokenizer::AppendText(std::int32_t token, std::string* out) const {
  const TokenKind kind = vocabulary().kind(token);
  if (kind == TokenKind::kByte) {
    out->push_back(static_cast<char>(vocabulary().TokenByte(token)));
  } else if (kind == TokenKind::kUserDefined) {
    out->append(vocabulary().text(token));
  } else if (const std::string_view word = words_.text(token); !word.empty()) {
    out->append(word);
  } else {
    AppendBytesOf(vocabulary().text(token), out);
  }
}

}  // namespace kvcache
