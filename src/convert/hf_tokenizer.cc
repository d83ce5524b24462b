#include "convert/hf_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "convert/embedding/hf_word_vocabularies.h"
#include "convert/hf_pre_tokenizer.h"
#include "convert/json_members.h"

namespace kvcache {
namespace {

using nlohmann::json;

constexpr std::int64_t kMaxTokens = std::int64_t{1} << 24;
constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581, SentencePiece's space

bool IsId(const json& value) {
  return value.is_number_unsigned() &&
         value.get<std::uint64_t>() < static_cast<std::uint64_t>(kMaxTokens);
}

// Returns the byte of "<0x0A>", or -1.
int ByteOf(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return -1;
  int byte = 0;
  for (const char c : text.substr(3, 2)) {
    if (c >= '0' && c <= '9') {
      byte = byte * 16 + (c - '0');
    } else if (c >= 'A' && c <= 'F') {
      byte = byte * 16 + (c - 'A' + 10);
    } else {
      return -1;
    }
  }
  return byte;
}

bool LooksLikeMarker(std::string_view text) {
  return (text.starts_with("<|") && text.ends_with("|>")) ||
         (text.starts_with("<\xef\xbd\x9c") && text.ends_with("\xef\xbd\x9c>"));
}

// Returns the stages of a normalizer, pre-tokenizer or post-processor: the parts of a Sequence.
std::vector<const json*> Stages(const json* stage, const char* parts) {
  std::vector<const json*> stages;
  if (stage == nullptr) return stages;
  if (TextOf(*stage, "type") != "Sequence") return {stage};
  const json* list = Member(*stage, parts);
  if (list == nullptr || !list->is_array()) return {stage};
  for (const json& each : *list) stages.push_back(&each);
  return stages;
}

using Ids = std::unordered_map<std::string, std::int32_t>;

struct Merge {
  std::string left, right;
};

class Converter {
 public:
  Converter(const json& tokenizer, std::int64_t rows, HfFallbackKind fallback)
      : tokenizer_(tokenizer), rows_(rows), fallback_(fallback) {}

  Result<HfTokenizer> Convert() {
    KVCACHE_RETURN_IF_ERROR(CheckModel());
    KVCACHE_RETURN_IF_ERROR(ReadVocabulary());
    KVCACHE_RETURN_IF_ERROR(ReadMerges());
    const bool byte_level = IsByteLevel();
    if (!byte_level && !FlagOf(*model_, "byte_fallback")) {
      return Unsupported(
          "model.byte_fallback is false and pre_tokenizer has no ByteLevel; must be a byte-level "
          "vocabulary or one with byte fallback");
    }
    KVCACHE_RETURN_IF_ERROR(byte_level ? ConvertByteLevel() : ConvertFallback());
    KVCACHE_RETURN_IF_ERROR(ReadAddedTokens());
    ReadTemplate();
    return std::move(result_);
  }

 private:
  TokenizerData& data() { return result_.data; }

  Status CheckModel() {
    model_ = Member(tokenizer_, "model");
    if (model_ == nullptr || !model_->is_object()) return Corrupt("model is missing");
    const std::string type = TextOf(*model_, "type");
    if (type != "BPE" && !(type.empty() && Member(*model_, "merges") != nullptr)) {
      return Unsupported(
          StrCat("model.type is ", Quoted(type), "; must be BPE, WordPiece or Unigram"));
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (TextOf(*model_, key).empty()) continue;
      return Unsupported(
          StrCat("model.", key, " is ", Quoted(TextOf(*model_, key)), "; must be empty"));
    }
    return Status::Ok();
  }

  // Places a token at its id. Two texts may share an id only if one spells a byte.
  Status Place(const std::string& text, std::int64_t id) {
    if (id >= rows_) {
      ++dropped_;
      return Status::Ok();
    }
    std::string& token = data().tokens[static_cast<std::size_t>(id)];
    if (token.empty() || ByteOf(text) >= 0) {
      if (!token.empty() && ByteOf(token) >= 0) {
        return Corrupt(
            StrCat("the tokens ", Quoted(token), " and ", Quoted(text), " have id ", id));
      }
      token = text;
    } else if (ByteOf(token) < 0) {
      return Corrupt(StrCat("the tokens ", Quoted(token), " and ", Quoted(text), " have id ", id));
    }
    return Status::Ok();
  }

  Status ReadVocabulary() {
    const json* vocabulary = Member(*model_, "vocab");
    if (vocabulary == nullptr || !vocabulary->is_object()) {
      return Corrupt("model.vocab is no object of tokens and ids");
    }
    const auto rows = static_cast<std::size_t>(rows_);
    data().tokens.resize(rows);
    data().types.assign(rows, static_cast<std::int32_t>(TokenKind::kNormal));
    for (const auto& [text, id] : vocabulary->items()) {
      if (!IsId(id)) {
        return Corrupt(StrCat("the id of token ", Quoted(text), " is ", Quoted(id.dump()),
                              "; must be a whole number below ", kMaxTokens));
      }
      if (text.empty()) return Corrupt("a token of model.vocab is empty");
      const auto number = id.get<std::int32_t>();
      ids_.emplace(text, number);
      KVCACHE_RETURN_IF_ERROR(Place(text, number));
    }
    return ReadAddedIds();
  }

  // Added tokens have ids of their own, or those of tokens of the vocabulary.
  Status ReadAddedIds() {
    const json* added = Member(tokenizer_, "added_tokens");
    if (added == nullptr) return Status::Ok();
    if (!added->is_array()) return Corrupt("added_tokens is no array");
    for (const json& token : *added) {
      const json* id = Member(token, "id");
      const std::string text = TextOf(token, "content");
      if (id == nullptr || !IsId(*id) || text.empty()) {
        return Corrupt("an object of added_tokens has no id or content");
      }
      const auto number = id->get<std::int32_t>();
      const auto [old, is_new] = ids_.emplace(text, number);
      if (old->second != number) {
        return Corrupt(StrCat("added token ", Quoted(text), " has id ", number,
                              "; model.vocab has ", old->second));
      }
      if (is_new) KVCACHE_RETURN_IF_ERROR(Place(text, number));
      if (number < rows_) added_.emplace(number, FlagOf(token, "special"));
    }
    return Status::Ok();
  }

  Status ReadMerges() {
    const json* merges = Member(*model_, "merges");
    if (merges == nullptr || !merges->is_array()) return Corrupt("model.merges is no array");
    merges_.reserve(merges->size());
    for (const json& merge : *merges) {
      std::optional<Merge> pair = PairOf(merge);
      if (!pair) {
        return Corrupt(StrCat("merge ", merges_.size(), " is ",
                              Quoted(merge.dump(-1, ' ', true, json::error_handler_t::replace)),
                              "; must be two texts, or one text with a space between them"));
      }
      const auto result = ids_.find(pair->left + pair->right);
      if (result == ids_.end()) {
        return Corrupt(StrCat("merge ", merges_.size(), " makes ", Quoted(pair->left + pair->right),
                              ", which is no token"));
      }
      if (result->second < rows_) merges_.push_back(*std::move(pair));
    }
    return Status::Ok();
  }

  // Reads "left right" or ["left", "right"].
  static std::optional<Merge> PairOf(const json& merge) {
    if (merge.is_string()) {
      const auto text = merge.get<std::string>();
      const std::size_t space = text.find(' ', 1);
      if (space == std::string::npos || space + 1 >= text.size()) return std::nullopt;
      return Merge{text.substr(0, space), text.substr(space + 1)};
    }
    const bool pair =
        merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string();
    if (!pair) return std::nullopt;
    Merge both{merge[0].get<std::string>(), merge[1].get<std::string>()};
    if (both.left.empty() || both.right.empty()) return std::nullopt;
    return both;
  }

  bool IsByteLevel() const {
    for (const json* stage : Stages(Member(tokenizer_, "pre_tokenizer"), "pretokenizers")) {
      if (TextOf(*stage, "type") == "ByteLevel") return true;
    }
    return false;
  }

  // ---- Byte-level vocabularies

  Status ConvertByteLevel() {
    data().compose = false;
    for (const json* stage : Stages(Member(tokenizer_, "normalizer"), "normalizers")) {
      const std::string type = TextOf(*stage, "type");
      if (type == "NFC") {
        data().compose = true;
        continue;
      }
      return Unsupported(StrCat("normalizer is ", Quoted(type), "; must be NFC or none"));
    }
    data().model = "gpt2";
    auto pre =
        FindHfPreTokenizer(*Member(tokenizer_, "pre_tokenizer"), FlagOf(*model_, "ignore_merges"));
    if (!pre.ok()) return std::move(pre).TakeStatus();
    data().pre = std::move(pre).value();
    return TakeMerges();
  }

  Status TakeMerges() {
    for (const Merge& merge : merges_) {
      if (merge.left.find(' ') != std::string::npos || merge.right.find(' ') != std::string::npos) {
        return Unsupported(StrCat("the merge of ", Quoted(merge.left), " and ", Quoted(merge.right),
                                  " has a space, which GGUF cannot express"));
      }
      data().merges.push_back(StrCat(merge.left, " ", merge.right));
    }
    return Status::Ok();
  }

  // ---- Vocabularies with byte fallback

  Status ConvertFallback() {
    KVCACHE_RETURN_IF_ERROR(ReadSpaces());
    for (std::size_t id = 0; id < data().tokens.size(); ++id) {
      if (ByteOf(data().tokens[id]) >= 0) SetType(id, TokenKind::kByte);
    }
    const auto unknown = ids_.find(TextOf(*model_, "unk_token"));
    if (unknown != ids_.end() && unknown->second < rows_) {
      unknown_ = unknown->second;
      data().unknown = unknown_;
    }
    if (fallback_ == HfFallbackKind::kMerges) {
      data().model = "gemma4";
      return TakeMerges();
    }
    data().model = "llama";
    KVCACHE_RETURN_IF_ERROR(CheckOrder());
    KVCACHE_RETURN_IF_ERROR(CheckComplete());
    SetScores();
    return Status::Ok();
  }

  // Reads how spaces become U+2581, and whether one is put in front of a text.
  Status ReadSpaces() {
    bool prefix = false;
    bool replaces = false;
    for (const json* stage : Stages(Member(tokenizer_, "normalizer"), "normalizers")) {
      const std::string type = TextOf(*stage, "type");
      const json* pattern = Member(*stage, "pattern");
      if (type == "Prepend" && TextOf(*stage, "prepend") == kSpace) {
        prefix = true;
      } else if (type == "Replace" && pattern != nullptr && TextOf(*pattern, "String") == " " &&
                 TextOf(*stage, "content") == kSpace) {
        replaces = true;
      } else {
        return Unsupported(StrCat("normalizer is ", Quoted(type),
                                  "; must put U+2581 in front or in place of spaces"));
      }
    }
    for (const json* stage : Stages(Member(tokenizer_, "pre_tokenizer"), "pretokenizers")) {
      const std::string type = TextOf(*stage, "type");
      const json* pattern = Member(*stage, "pattern");
      if (type == "Metaspace" && TextOf(*stage, "replacement") == kSpace) {
        const std::string scheme = TextOf(*stage, "prepend_scheme");
        prefix = scheme.empty() ? FlagOf(*stage, "add_prefix_space") : scheme != "never";
        replaces = true;
      } else if (!(replaces && type == "Split" && pattern != nullptr &&
                   TextOf(*pattern, "String") == " ")) {  // after the replacement it never matches
        return Unsupported(
            StrCat("pre_tokenizer is ", Quoted(type), "; must be Metaspace or none"));
      }
    }
    if (!replaces)
      return Unsupported("neither normalizer nor pre_tokenizer turns spaces into U+2581");
    data().add_space_prefix = prefix;
    return Status::Ok();
  }

  bool IsAdded(std::int32_t id) const { return added_.contains(id); }

  // Returns whether merging can use the token: not special, no byte, inside of the vocabulary.
  bool IsPiece(std::int32_t id) const {
    return id < rows_ && id != unknown_ && !IsAdded(id) &&
           ByteOf(data_tokens()[static_cast<std::size_t>(id)]) < 0;
  }
  const std::vector<std::string>& data_tokens() const { return result_.data.tokens; }

  // Checks that all merges with one result follow each other, so that results have an order.
  Status CheckOrder() {
    std::int32_t current = -1;
    for (std::size_t i = 0; i < merges_.size(); ++i) {
      const std::int32_t result = ids_.at(merges_[i].left + merges_[i].right);
      if (!IsPiece(result) || result == current) continue;
      current = result;
      if (rank_.emplace(result, static_cast<std::int32_t>(i)).second) continue;
      return Unsupported(StrCat("merge ", i, " makes ", Quoted(merges_[i].left + merges_[i].right),
                                " again, after other tokens; scores cannot express that order"));
    }
    return Status::Ok();
  }

  // Checks that every pair of tokens whose result is a token has a merge, as SentencePiece merges
  // all of them.
  Status CheckComplete() {
    std::unordered_set<std::uint64_t> pairs;
    const auto key = [](std::int32_t left, std::int32_t right) {
      return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint64_t>(right);
    };
    for (const Merge& merge : merges_) {
      const auto left = ids_.find(merge.left);
      const auto right = ids_.find(merge.right);
      if (left == ids_.end() || right == ids_.end()) continue;
      pairs.insert(key(left->second, right->second));
    }
    for (const auto& [text, id] : ids_) {
      if (!IsPiece(id)) continue;
      for (std::size_t cut = 1; cut < text.size(); ++cut) {
        if ((static_cast<unsigned char>(text[cut]) & 0xc0u) == 0x80u) continue;
        const auto left = ids_.find(text.substr(0, cut));
        if (left == ids_.end() || !IsPiece(left->second)) continue;
        const auto right = ids_.find(text.substr(cut));
        if (right == ids_.end() || !IsPiece(right->second)) continue;
        if (pairs.contains(key(left->second, right->second))) continue;
        return Unsupported(StrCat("there is no merge of ", Quoted(left->first), " and ",
                                  Quoted(right->first),
                                  ", but their result is a token; scores "
                                  "cannot express that"));
      }
    }
    return Status::Ok();
  }

  // Sets scores that fall with the order of the merges. If ids have that order too, the scores are
  // SentencePiece's own: minus the number of the piece.
  void SetScores() {
    std::vector<std::pair<std::int32_t, std::int32_t>> order;
    for (const auto& [id, rank] : rank_) order.emplace_back(rank, id);
    std::sort(order.begin(), order.end());
    const bool by_id = std::is_sorted(order.begin(), order.end(), [](const auto& a, const auto& b) {
      return a.second < b.second;
    });
    std::int32_t first = 0;
    while (first < rows_ && !IsPiece(first)) ++first;
    data().scores.assign(static_cast<std::size_t>(rows_), 0.0f);
    for (std::int32_t id = first; id < rows_; ++id) {
      if (!IsPiece(id)) continue;
      const auto rank = rank_.find(id);
      const std::int32_t last = static_cast<std::int32_t>(merges_.size());
      const std::int32_t place = by_id ? id - first : rank == rank_.end() ? last : rank->second;
      data().scores[static_cast<std::size_t>(id)] = -static_cast<float>(place);
    }
  }

  // ---- Both

  void SetType(std::size_t id, TokenKind kind) {
    data().types[id] = static_cast<std::int32_t>(kind);
  }

  Status ReadAddedTokens() {
    for (const auto& [id, special] : added_) {
      const auto at = static_cast<std::size_t>(id);
      const bool control = special || LooksLikeMarker(data().tokens[at]);
      SetType(at, control ? TokenKind::kControl : TokenKind::kUserDefined);
    }
    if (unknown_ >= 0) SetType(static_cast<std::size_t>(unknown_), TokenKind::kUnknown);
    for (std::size_t id = 0; id < data().tokens.size(); ++id) {
      if (!data().tokens[id].empty()) continue;
      data().tokens[id] = StrCat("[PAD", id, "]");
      SetType(id, TokenKind::kUnused);
    }
    if (dropped_ > 0) {
      result_.notes.push_back(StrCat(dropped_, " tokens have ids beyond the ", rows_,
                                     " rows of the embedding and were left out"));
    }
    return Status::Ok();
  }

  // Reads from the post-processor whether a text begins or ends with a special token.
  void ReadTemplate() {
    for (const json* stage : Stages(Member(tokenizer_, "post_processor"), "processors")) {
      if (TextOf(*stage, "type") != "TemplateProcessing") continue;
      const json* single = Member(*stage, "single");
      if (single == nullptr || !single->is_array() || single->empty()) continue;
      const auto special = [](const json& part) { return Member(part, "SpecialToken") != nullptr; };
      data().add_bos = special(single->front());
      data().add_eos = single->size() > 1 && special(single->back());
    }
  }

  const json& tokenizer_;
  const std::int64_t rows_;
  const HfFallbackKind fallback_;
  const json* model_ = nullptr;
  Ids ids_;
  std::unordered_map<std::int32_t, bool> added_;  // special
  std::vector<Merge> merges_;
  std::unordered_map<std::int32_t, std::int32_t> rank_;  // the first merge that makes a token
  std::int32_t unknown_ = -1;
  std::int64_t dropped_ = 0;
  HfTokenizer result_;
};

}  // namespace

Result<HfTokenizer> ConvertHfTokenizer(const json& tokenizer, std::int64_t rows,
                                       HfFallbackKind fallback) {
  if (!tokenizer.is_object()) return Corrupt("it is not a JSON object");
  if (rows < 1 || rows > kMaxTokens) {
    return InvalidArgument(StrCat("the embedding has ", rows, " rows; must be 1 to ", kMaxTokens));
  }
  const json* const model = Member(tokenizer, "model");
  const std::string type = model == nullptr ? "" : TextOf(*model, "type");
  if (type == "WordPiece") return ConvertHfWordPiece(tokenizer, rows);
  if (type == "Unigram") return ConvertHfUnigram(tokenizer, rows);
  return Converter(tokenizer, rows, fallback).Convert();
}

}  // namespace kvcache
