#include "tokenizer/tokenizer.h"

#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "tokenizer/bpe/bpe_tokenizer.h"
#include "tokenizer/bpe/character_bpe_tokenizer.h"
#include "tokenizer/clean_spaces.h"
#include "tokenizer/spm/spm_tokenizer.h"
#include "tokenizer/unigram/unigram_tokenizer.h"
#include "tokenizer/wordpiece/wordpiece_tokenizer.h"

namespace kvcache {
namespace {

constexpr std::size_t kMaxTextBytes = std::size_t{1} << 30;

bool IsHidden(TokenKind kind) {
  return kind == TokenKind::kControl || kind == TokenKind::kUnknown;
}

bool ShouldAdd(AddToken option, bool per_file) {
  return option == AddToken::kYes || (option == AddToken::kPerFile && per_file);
}

Status TooLong(std::size_t bytes) {
  return InvalidArgument(StrCat("the text has ", bytes, " bytes; at most ", kMaxTextBytes - 1,
                                " can be encoded at once"));
}

}  // namespace

Tokenizer::Tokenizer(Vocabulary vocabulary)
    : vocabulary_(std::move(vocabulary)), special_tokens_(vocabulary_) {}

Tokenizer::~Tokenizer() = default;

Result<std::vector<std::int32_t>> Tokenizer::Encode(std::string_view text,
                                                    const EncodeOptions& options) const {
  if (text.size() >= kMaxTextBytes) return TooLong(text.size());
  std::vector<std::int32_t> tokens;
  tokens.reserve(text.size() / 4 + 8);
  const auto add = [&tokens](std::int32_t token) {
    if (token != kNoToken) tokens.push_back(token);
  };
  if (ShouldAdd(options.add_bos, vocabulary_.add_bos())) add(bos());
  for (const TextPiece& piece : special_tokens_.Cut(text, options.special)) {
    if (piece.token != kNoToken) {
      tokens.push_back(piece.token);
    } else {
      EncodePlain(text.substr(piece.begin, piece.end - piece.begin), &tokens);
    }
  }
  if (ShouldAdd(options.add_eos, vocabulary_.add_eos())) add(end());
  return tokens;
}

Result<MarkedTokens> Tokenizer::EncodeMarked(std::string_view text,
                                             std::span<const TextRange> foreign,
                                             std::span<const std::int32_t> in_literals) const {
  if (text.size() >= kMaxTextBytes) return TooLong(text.size());
  MarkedTokens marked;
  for (const TextPiece& piece : special_tokens_.CutMarked(text, foreign, in_literals)) {
    if (piece.token != kNoToken) {
      marked.anchors.push_back({piece.begin, marked.tokens.size()});
      marked.tokens.push_back(piece.token);
    } else {
      EncodePlain(text.substr(piece.begin, piece.end - piece.begin), &marked.tokens);
    }
  }
  return marked;
}

Result<std::string> Tokenizer::Decode(std::span<const std::int32_t> tokens,
                                      const DecodeOptions& options) const {
  std::string text;
  const bool strip = options.leading_space == LeadingSpace::kStrip;
  bool space_added = strip && AddsSpaceAfter(kNoToken);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::int32_t token = tokens[i];
    if (!vocabulary_.Has(token)) {
      return InvalidArgument(StrCat("token ", token, " at index ", i,
                                    " is outside the vocabulary; must be 0 to ",
                                    vocabulary_.size() - 1));
    }
    const std::size_t before = text.size();
    AppendPiece(token, &text, options.control);
    if (strip && AddsSpaceAfter(token)) {
      space_added = true;
    } else if (space_added && text.size() > before) {
      if (text[before] == ' ') text.erase(before, 1);
      space_added = false;
    }
  }
  if (options.cleaning == SpaceCleaning::kPerFile && CleansSpaces()) CleanSpaces(&text);
  return text;
}

void Tokenizer::AppendPiece(std::int32_t token, std::string* out, ControlText control) const {
  if (!vocabulary_.Has(token)) return;
  if (!IsHidden(vocabulary_.kind(token))) return AppendText(token, out);
  if (control == ControlText::kShown) out->append(vocabulary_.text(token));
}

std::string Tokenizer::Piece(std::int32_t token, ControlText control) const {
  std::string piece;
  AppendPiece(token, &piece, control);
  return piece;
}

std::string Tokenizer::Describe() const {
  std::string text(KindName());
  text += StrCat(", ", vocabulary_.size(), " tokens");
  const auto add = [&text](std::string_view name, std::int32_t id) {
    if (id != kNoToken) text += StrCat(", ", name, " ", id);
  };
  add("bos", bos());
  add("eos", eos());
  add("eot", eot());
  add("unknown", unknown());
  return text;
}

Result<std::unique_ptr<Tokenizer>> MakeTokenizer(const TokenizerData& data) {
  if (data.model == "gpt2" && !CharacterBpeTokenizer::IsKindOf(data))
    return BpeTokenizer::Make(data);
  if (data.model == "t5") return UnigramTokenizer::Make(data);
  if (data.model == "bert") return WordPieceTokenizer::Make(data);
  if (data.model == "gpt2" || data.model == "gemma4") return CharacterBpeTokenizer::Make(data);
  if (data.model != "llama") {
    return Unsupported(StrCat(
        "vocabulary kind ", Quoted(data.model, 64),
        " is not supported; supported: 'llama' (SentencePiece BPE), 'gpt2' (byte-level BPE), 't5' "
        "(unigram), 'gemma4' (character BPE), 'bert' (WordPiece)"));
  }
  KVCACHE_ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::Make(data));
  return std::unique_ptr<Tokenizer>(std::make_unique<SpmTokenizer>(std::move(vocabulary)));
}

}  // namespace kvcache
