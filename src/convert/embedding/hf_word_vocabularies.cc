#include "convert/embedding/hf_word_vocabularies.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "convert/json_members.h"
#include "tokenizer/tokenizer.h"

namespace kvcache {
namespace {

using nlohmann::json;

constexpr std::string_view kWordBegin = "\xe2\x96\x81";  // U+2581

// Returns the parts of a normalizer or pre-tokenizer that is a Sequence, else itself.
std::vector<const json*> PartsOfStage(const json* stage, const char* parts) {
  std::vector<const json*> all;
  if (stage == nullptr) return all;
  const json* const list = Member(*stage, parts);
  if (list == nullptr || !list->is_array()) return {stage};
  for (const json& each : *list) all.push_back(&each);
  return all;
}

// Decodes base64 (RFC 4648).
std::optional<std::string> FromBase64(std::string_view text) {
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    constexpr std::string_view kDigits =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const std::size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<char>(bits >> count & 255));
  }
  return bytes;
}

// Returns an id, if the value is one that a vocabulary may have.
std::optional<std::int64_t> WordId(const json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  const auto id = value.get<std::int64_t>();
  return id >= 0 && id < std::int64_t{1} << 24 ? std::optional(id) : std::nullopt;
}

// Collects tokens by their ids.
class WordTokens {
 public:
  WordTokens(std::int64_t rows, HfTokenizer* result) : rows_(rows), result_(result) {
    data().tokens.resize(static_cast<std::size_t>(rows));
    data().types.assign(static_cast<std::size_t>(rows),
                        static_cast<std::int32_t>(TokenKind::kUnused));
  }

  TokenizerData& data() { return result_->data; }

  Status Place(const json& id, std::string text, TokenKind kind) {
    const std::optional<std::int64_t> number = WordId(id);
    if (!number) {
      return Corrupt(StrCat("the id of token ", Quoted(text), " is ", Quoted(id.dump()),
                            "; must be a whole number below ", 1 << 24));
    }
    return PlaceAt(*number, std::move(text), kind);
  }
  Status PlaceAt(std::int64_t id, std::string text, TokenKind kind) {
    if (text.empty()) return Corrupt(StrCat("token ", id, " is empty"));
    if (id >= rows_) {
      ++dropped_;
      return Status::Ok();
    }
    const auto at = static_cast<std::size_t>(id);
    if (!data().tokens[at].empty()) {
      return Corrupt(
          StrCat("the tokens ", Quoted(data().tokens[at]), " and ", Quoted(text), " have id ", id));
    }
    data().tokens[at] = std::move(text);
    data().types[at] = static_cast<std::int32_t>(kind);
    return Status::Ok();
  }

  // Gives added tokens their texts and types: `added_tokens` may name tokens of the vocabulary again.
  Status PlaceAdded(const json& tokenizer) {
    const json* const added = Member(tokenizer, "added_tokens");
    if (added == nullptr) return Status::Ok();
    if (!added->is_array()) return Corrupt("added_tokens is no array");
    for (const json& token : *added) {
      const json* const id = Member(token, "id");
      if (id == nullptr) return Corrupt("an object of added_tokens has no id");
      if (const auto number = WordId(*id); number && *number < rows_) {
        data().tokens[static_cast<std::size_t>(*number)].clear();
      }
      const auto kind = FlagOf(token, "special") ? TokenKind::kControl : TokenKind::kUserDefined;
      KVCACHE_RETURN_IF_ERROR(Place(*id, TextOf(token, "content"), kind));
    }
    return Status::Ok();
  }

  void SetUnknown(std::int64_t id) {
    if (id < 0 || id >= rows_) return;
    data().unknown = id;
    data().types[static_cast<std::size_t>(id)] = static_cast<std::int32_t>(TokenKind::kUnknown);
  }

  // Fills rows without a token.
  void Finish() {
    for (std::size_t id = 0; id < data().tokens.size(); ++id) {
      if (data().tokens[id].empty()) data().tokens[id] = StrCat("[PAD", id, "]");
    }
    if (dropped_ == 0) return;
    result_->notes.push_back(StrCat(dropped_, " tokens have ids beyond the ", rows_,
                                    " rows of the embedding and were left out"));
  }

 private:
  const std::int64_t rows_;
  HfTokenizer* result_;
  std::int64_t dropped_ = 0;
};

// Texts in brackets are no words: they are special, or unused.
std::string WordPieceText(const std::string& text, std::string_view prefix) {
  if (text.starts_with('[') && text.ends_with(']') && text.size() > 2) return text;
  if (text.starts_with(prefix) && text.size() > prefix.size()) return text.substr(prefix.size());
  return StrCat(kWordBegin, text);
}

Status ReadBertNormalizer(const json& tokenizer, TokenizerData* data) {
  for (const json* stage : PartsOfStage(Member(tokenizer, "normalizer"), "normalizers")) {
    const std::string type = TextOf(*stage, "type");
    if (type != "BertNormalizer") {
      return Unsupported(StrCat("normalizer is ", Quoted(type), "; must be BertNormalizer"));
    }
    for (const char* key : {"clean_text", "handle_chinese_chars"}) {
      if (!FlagOf(*stage, key, true)) {
        return Unsupported(StrCat("normalizer.", key, " is false; must be true"));
      }
    }
    data->lowercase = FlagOf(*stage, "lowercase", true);
    data->strip_accents = FlagOf(*stage, "strip_accents", *data->lowercase);
    return Status::Ok();
  }
  data->lowercase = data->strip_accents = false;
  return Status::Ok();
}

Status CheckStages(const json& tokenizer, std::initializer_list<std::string_view> known) {
  for (const json* stage : PartsOfStage(Member(tokenizer, "pre_tokenizer"), "pretokenizers")) {
    const std::string type = TextOf(*stage, "type");
    if (std::ranges::find(known, type) != known.end()) continue;
    return Unsupported(
        StrCat("pre_tokenizer is ", Quoted(type), ", which is not supported for this vocabulary"));
  }
  return Status::Ok();
}

// Reads the rules of a unigram vocabulary's texts.
Status ReadUnigramNormalizer(const json& tokenizer, TokenizerData* data) {
  for (const json* stage : PartsOfStage(Member(tokenizer, "normalizer"), "normalizers")) {
    const std::string type = TextOf(*stage, "type");
    if (type == "Precompiled") {
      auto charsmap = FromBase64(TextOf(*stage, "precompiled_charsmap"));
      if (!charsmap) return Corrupt("normalizer.precompiled_charsmap is not base64");
      data->charsmap = std::move(*charsmap);
    } else if (type == "Replace") {
      const json* const pattern = Member(*stage, "pattern");
      const bool is_known =
          pattern != nullptr && TextOf(*pattern, "Regex") == " {2,}" &&
          (TextOf(*stage, "content") == " " || TextOf(*stage, "content") == kWordBegin);
      if (!is_known)
        return Unsupported("normalizer Replace does something else than to join spaces");
      data->remove_extra_spaces = true;
    } else if (type != "Strip") {
      return Unsupported(
          StrCat("normalizer is ", Quoted(type), "; must be Precompiled, or join spaces"));
    }
  }
  return Status::Ok();
}

Status ReadUnigramSpaces(const json& tokenizer, TokenizerData* data) {
  KVCACHE_RETURN_IF_ERROR(CheckStages(tokenizer, {"Metaspace", "WhitespaceSplit"}));
  data->add_space_prefix = false;
  for (const json* stage : PartsOfStage(Member(tokenizer, "pre_tokenizer"), "pretokenizers")) {
    if (TextOf(*stage, "type") == "WhitespaceSplit") {
      data->remove_extra_spaces = true;
      continue;
    }
    const std::string scheme = TextOf(*stage, "prepend_scheme");
    data->add_space_prefix =
        scheme.empty() ? FlagOf(*stage, "add_prefix_space", true) : scheme != "never";
  }
  if (!data->remove_extra_spaces) data->remove_extra_spaces = false;
  return Status::Ok();
}

}  // namespace

Result<HfTokenizer> ConvertHfWordPiece(const json& tokenizer, std::int64_t rows) {
  HfTokenizer result;
  const json& model = *Member(tokenizer, "model");
  const json* const vocabulary = Member(model, "vocab");
  if (vocabulary == nullptr || !vocabulary->is_object()) {
    return Corrupt("model.vocab is no object of tokens and ids");
  }
  std::string prefix = TextOf(model, "continuing_subword_prefix");
  if (prefix.empty()) prefix = "##";
  WordTokens tokens(rows, &result);
  result.data.model = "bert";
  KVCACHE_RETURN_IF_ERROR(ReadBertNormalizer(tokenizer, &result.data));
  KVCACHE_RETURN_IF_ERROR(CheckStages(tokenizer, {"BertPreTokenizer"}));
  for (const auto& [text, id] : vocabulary->items()) {
    KVCACHE_RETURN_IF_ERROR(tokens.Place(id, WordPieceText(text, prefix), TokenKind::kNormal));
  }
  KVCACHE_RETURN_IF_ERROR(tokens.PlaceAdded(tokenizer));
  const json* const unknown = Member(*vocabulary, TextOf(model, "unk_token").c_str());
  if (unknown != nullptr) tokens.SetUnknown(WordId(*unknown).value_or(-1));
  tokens.Finish();
  KVCACHE_RETURN_IF_ERROR(MakeTokenizer(result.data).status());  // else no text could be encoded
  return result;
}

Result<HfTokenizer> ConvertHfUnigram(const json& tokenizer, std::int64_t rows) {
  HfTokenizer result;
  const json& model = *Member(tokenizer, "model");
  const json* const vocabulary = Member(model, "vocab");
  if (vocabulary == nullptr || !vocabulary->is_array()) {
    return Corrupt("model.vocab is no array of tokens and scores");
  }
  if (FlagOf(model, "byte_fallback")) {
    return Unsupported("model.byte_fallback is true; must be false for a unigram vocabulary");
  }
  WordTokens tokens(rows, &result);
  result.data.model = "t5";
  result.data.scores.assign(static_cast<std::size_t>(rows), 0.0f);
  KVCACHE_RETURN_IF_ERROR(ReadUnigramNormalizer(tokenizer, &result.data));
  KVCACHE_RETURN_IF_ERROR(ReadUnigramSpaces(tokenizer, &result.data));
  std::int64_t id = 0;
  for (const json& each : *vocabulary) {
    const bool is_pair =
        each.is_array() && each.size() == 2 && each[0].is_string() && each[1].is_number();
    if (!is_pair || !std::isfinite(each[1].get<float>())) {
      return Corrupt(StrCat("token ", id, " of model.vocab is no text with a score"));
    }
    KVCACHE_RETURN_IF_ERROR(tokens.PlaceAt(id, each[0].get<std::string>(), TokenKind::kNormal));
    if (id < rows) result.data.scores[static_cast<std::size_t>(id)] = each[1].get<float>();
    ++id;
  }
  KVCACHE_RETURN_IF_ERROR(tokens.PlaceAdded(tokenizer));
  const json* const unknown = Member(model, "unk_id");
  if (unknown != nullptr) tokens.SetUnknown(WordId(*unknown).value_or(-1));
  tokens.Finish();
  KVCACHE_RETURN_IF_ERROR(MakeTokenizer(result.data).status());  // else no text could be encoded
  return result;
}

}  // namespace kvcache
