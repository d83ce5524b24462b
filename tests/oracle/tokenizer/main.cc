// tokenizer_oracle: prepares and compares the data of compare.py.
//
//   tokenizer_oracle prepare FOLDER COUNT [MODEL…]   writes vocabularies and strings.json
//   tokenizer_oracle compare FOLDER COUNT            reads strings.json and llama.*.json
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "gguf/gguf.h"
#include "oracle_strings.h"
#include "oracle_vocabularies.h"
#include "tokenizer/bpe/pre_tokenizer.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode/unicode_class.h"
#include "tokenizer/unicode/unicode_fold.h"
#include "tokenizer/unicode/utf8_stream.h"

namespace kvcache {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

constexpr int kMaxShown = 10;

Json Bytes(std::string_view text) {
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(static_cast<std::uint8_t>(c));
  return bytes;
}

std::string FromBytes(const Json& bytes) {
  std::string text;
  for (const Json& byte : bytes) text.push_back(static_cast<char>(byte.get<std::uint8_t>()));
  return text;
}

std::vector<OracleVocabulary> AllVocabularies() {
  std::vector<OracleVocabulary> all = SpmVocabularies();
  std::ranges::move(BpeVocabularies(), std::back_inserter(all));
  std::ranges::move(UnigramVocabularies(), std::back_inserter(all));
  std::ranges::move(GemmaVocabularies(), std::back_inserter(all));
  std::ranges::move(WordPieceVocabularies(), std::back_inserter(all));
  return all;
}

// Returns the vocabulary with its user-defined marks as control tokens, which llama.cpp does not
// find in plain text. Our tokenizer treats marks like that whatever their type. Returns nothing if
// the vocabulary has no such marks.
Result<std::optional<TokenizerData>> WithControlMarks(const TokenizerData& data) {
  KVCACHE_ASSIGN_OR_RETURN(const auto tokenizer, MakeTokenizer(data));
  TokenizerData control = data;
  bool has_marks = false;
  for (std::size_t i = 0; i < control.types.size(); ++i) {
    const bool mark = control.types[i] == static_cast<std::int32_t>(TokenKind::kUserDefined) &&
                      tokenizer->vocabulary().IsStructure(static_cast<std::int32_t>(i));
    if (mark) control.types[i] = static_cast<std::int32_t>(TokenKind::kControl);
    has_marks = has_marks || mark;
  }
  return has_marks ? std::optional(std::move(control)) : std::nullopt;
}

Status Prepare(const std::string& folder, std::size_t count,
               const std::vector<std::string>& models) {
  Json paths = Json::array();
  std::vector<TokenizerData> vocabularies;
  for (auto& [name, data, share] : AllVocabularies()) {
    paths.push_back(
        {{"path", folder + "/" + name + ".gguf"}, {"every", share.every}, {"first", share.first}});
    KVCACHE_RETURN_IF_ERROR(WriteVocabulary(data, paths.back()["path"]));
    KVCACHE_ASSIGN_OR_RETURN(const auto control, WithControlMarks(data));
    if (control) {
      paths.back()["plain"] = folder + "/" + name + ".control-marks.gguf";
      KVCACHE_RETURN_IF_ERROR(WriteVocabulary(*control, paths.back()["plain"]));
    }
    vocabularies.push_back(std::move(data));
  }
  for (const std::string& model : models)
    paths.push_back({{"path", model}, {"every", 1}, {"first", 0}});
  Json seen = Json::array();
  Json broken = Json::object();
  for (const OracleString& string : OracleStrings(count, vocabularies)) {
    // JSON strings cannot hold invalid UTF-8, so its bytes are stored apart.
    if (string.text != string.seen) broken[std::to_string(seen.size())] = Bytes(string.text);
    seen.push_back(string.seen);
  }
  std::ofstream file(folder + "/strings.json");
  file << Json{{"models", paths}, {"strings", seen}, {"broken", broken}};
  file.close();
  return file ? Status::Ok() : Status(StatusCode::kIo, "cannot write " + folder + "/strings.json");
}

Result<Json> ReadJson(const std::string& path) {
  std::ifstream file(path);
  Json json = Json::parse(file, nullptr, false);
  if (json.is_discarded()) return Status(StatusCode::kCorrupt, path + ": no JSON");
  return json;
}

// Returns the text that JavaScript reads from these bytes: invalid UTF-8 is replaced.
std::string AsText(std::string_view bytes) {
  Utf8Stream stream;
  std::string text;
  stream.Push(bytes, &text);
  stream.Flush(&text);
  return text;
}

// Returns the text with U+2581 replaced by spaces, as a vocabulary reads it.
std::string WithSpaces(std::string text) {
  for (std::size_t at = 0; (at = text.find("▁", at)) != std::string::npos;) {
    text.replace(at, std::string_view("▁").size(), " ");
  }
  return text;
}

bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

bool IsWhite(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

// Returns whether a digit follows two characters of white space.
bool HasNumberBehindSpaces(std::string_view text) {
  for (std::size_t i = 2; i < text.size(); ++i) {
    if (text[i] >= '0' && text[i] <= '9' && IsWhite(text[i - 1]) && IsWhite(text[i - 2]))
      return true;
  }
  return false;
}

// Returns the pre-tokenizer that a tokenizer describes; nullptr if its kind has none.
const PreTokenizer* FindPreTokenizerOf(const Tokenizer& tokenizer) {
  for (const PreTokenizer& pre : PreTokenizers()) {
    if (tokenizer.KindName() == "byte-level BPE (" + std::string(pre.name) + ")") return &pre;
  }
  return nullptr;
}

// Returns whether the words of a text may end where the model was trained to end them and llama.cpp ends others:
// GPT-4o's words beyond ASCII; those of Kimi K2, Tiny Aya and Youtu also at upper case; and numbers in groups of three,
// whose first group takes the spaces before it there. tests/tokenizer compares the first with the model's own tokenizer.
bool CutsAsTrained(const PreTokenizer& pre, std::string_view text) {
  return std::ranges::any_of(pre.stages, [&](const CutStage& stage) {
    if (stage.next == NextNumberGroup) return !IsAscii(text) || HasNumberBehindSpaces(text);
    if (stage.words.word_case != WordCase::kTrained) return false;
    const bool cuts_case = !stage.words.apart.empty() || pre.stages.size() > 1;
    return !IsAscii(text) ||
           (cuts_case && std::ranges::any_of(text, [](char c) { return c >= 'A' && c <= 'Z'; }));
  });
}

// Returns whether WordPiece was trained to see a text otherwise than llama.cpp does: characters that are not assigned
// vanish, marks that take space stay, Hangul syllables are taken apart, and words of more than 100 characters are unknown.
bool FoldsAsTrained(std::string_view text) {
  std::size_t word = 0;
  for (const char *at = text.data(), *end = at + text.size(); at != end;) {
    const Utf8Character c = DecodeUtf8(at);
    at += c.bytes;
    const UnicodeClass kind = UnicodeClasses().ClassOf(c.code_point);
    word = kind == kWhite ? 0 : word + 1;
    const bool spacing = kind == kMark && !IsNonspacingMark(c.code_point);
    if (spacing || (kind == kOther && c.bytes > 1) || word > 100) return true;
    for (const std::uint32_t part : PartsOf(c.code_point)) {
      if (part >= 0x1100 && part < 0x1200) return true;
    }
  }
  return false;
}

// Compares one model, and counts and prints the differences.
class Comparison {
 public:
  Comparison(std::string name, const Tokenizer& tokenizer)
      : name_(std::move(name)), tokenizer_(tokenizer), pre_(FindPreTokenizerOf(tokenizer)) {}

  void Strings(const std::vector<OracleString>& strings, std::size_t every, const Json& theirs,
               SpecialText special) {
    for (std::size_t i = 0; i < strings.size(); i += every) {
      if (KeepsBytes() && strings[i].text != strings[i].seen) continue;
      if (pre_ != nullptr && CutsAsTrained(*pre_, strings[i].text)) continue;
      if (tokenizer_.KindName() == "WordPiece" && FoldsAsTrained(strings[i].seen)) continue;
      const Ids ours = *tokenizer_.Encode(
          strings[i].text,
          {.add_bos = AddToken::kNo, .add_eos = AddToken::kNo, .special = special});
      const Ids llama = theirs[i / every].get<Ids>();
      tokens_ += ours.size();
      if (ours != llama && special == SpecialText::kPlain && HasHidden(llama)) {
        ++joined_;  // llama.cpp joins text to a control token; ours must stay text
        Expect(!HasHidden(ours), "string " + Json(strings[i].seen).dump() + " has a control token");
        ExpectDecodes(ours, strings[i].seen);
        continue;
      }
      if (ours != llama && special == SpecialText::kParse && HasUntypedStructure(ours)) {
        ++untyped_;  // ours is BOS or another special id whose type in the file is normal
        ExpectDecodes(ours, strings[i].seen);
        continue;
      }
      Expect(ours == llama, "string " + Json(strings[i].seen).dump() + ": ours " +
                                Json(ours).dump() + ", llama.cpp's " + Json(llama).dump());
    }
  }

  // Compares decoded text without special tokens: ours drops the space after a special token,
  // llama.cpp drops it only at the front.
  void Decoded(const Json& ids, const Json& theirs) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const Ids tokens = ids[i].get<Ids>();
      if (HasSpecial(tokens)) continue;
      const std::string ours =
          AsText(*tokenizer_.Decode(tokens, {.cleaning = SpaceCleaning::kPerFile}));
      Expect(ours == theirs[i].get<std::string>(),
             "decoded " + Json(ours).dump() + ", llama.cpp's " + theirs[i].dump());
    }
  }

  void Pieces(const Json& theirs) {
    for (std::int32_t token = 0; token < tokenizer_.vocabulary_size(); ++token) {
      if (tokenizer_.vocabulary().kind(token) == TokenKind::kUnused) continue;
      std::string ours =
          *tokenizer_.Decode(std::span(&token, 1), {.control = ControlText::kShown,
                                                    .leading_space = LeadingSpace::kKeep,
                                                    .cleaning = SpaceCleaning::kPerFile});
      if (tokenizer_.vocabulary().add_space_prefix() && ours.starts_with(' ')) ours.erase(0, 1);
      Expect(AsText(ours) == theirs[static_cast<std::size_t>(token)].get<std::string>(),
             "piece " + std::to_string(token) + " " + Json(AsText(ours)).dump() + ", llama.cpp's " +
                 theirs[static_cast<std::size_t>(token)].dump());
    }
  }

  void Ends(const Json& theirs) {
    Ids ours;
    for (std::int32_t token = 0; token < tokenizer_.vocabulary_size(); ++token) {
      if (tokenizer_.IsEndOfGeneration(token)) ours.push_back(token);
    }
    Expect(ours == theirs.get<Ids>(),
           "ends " + Json(ours).dump() + ", llama.cpp's " + theirs.dump());
  }

  // Prints a line and returns whether everything was equal.
  bool Report() const {
    std::printf("%-16s %s: %d comparisons, %zu tokens, %d differ", name_.c_str(),
                tokenizer_.Describe().c_str(), compared_, tokens_, different_);
    if (joined_ > 0)
      std::printf(" (not counting %d that llama.cpp joins to control tokens)", joined_);
    if (untyped_ > 0)
      std::printf(" (not counting %d with special ids that the file calls normal)", untyped_);
    std::printf("\n");
    return different_ == 0;
  }

 private:
  // Kind "llama" has tokens for bytes of invalid UTF-8. llama.cpp has them too, but JavaScript
  // cannot pass such bytes.
  bool KeepsBytes() const { return tokenizer_.KindName() == "SentencePiece BPE"; }

  bool HasHidden(const Ids& tokens) const {
    for (const std::int32_t token : tokens) {
      if (token != tokenizer_.unknown() && tokenizer_.vocabulary().IsStructure(token)) return true;
    }
    return false;
  }

  // Returns whether there are special ids whose type is that of ordinary tokens. llama.cpp never
  // finds such tokens in a text.
  bool HasUntypedStructure(const Ids& tokens) const {
    const Vocabulary& vocabulary = tokenizer_.vocabulary();
    return std::ranges::any_of(tokens, [&](std::int32_t token) {
      return vocabulary.IsStructure(token) && vocabulary.kind(token) == TokenKind::kNormal;
    });
  }

  void ExpectDecodes(const Ids& tokens, const std::string& text) {
    Expect(*tokenizer_.Decode(tokens, {.control = ControlText::kShown}) ==
               (KeepsBytes() ? WithSpaces(text) : text),
           "string " + Json(text).dump() + " is decoded to another string");
  }

  bool HasSpecial(const Ids& tokens) const {
    for (const std::int32_t token : tokens) {
      const TokenKind kind = tokenizer_.vocabulary().kind(token);
      if (kind != TokenKind::kNormal && kind != TokenKind::kByte) return true;
    }
    return false;
  }

  void Expect(bool equal, const std::string& message) {
    ++compared_;
    if (equal) return;
    if (++different_ <= kMaxShown) std::printf("%s: %s\n", name_.c_str(), message.c_str());
  }

  std::string name_;
  const Tokenizer& tokenizer_;
  const PreTokenizer* pre_;
  int compared_ = 0;
  int different_ = 0;
  int joined_ = 0;
  int untyped_ = 0;
  std::size_t tokens_ = 0;
};

Result<bool> CompareModel(const std::string& path, const std::vector<OracleString>& strings,
                          const Json& llama) {
  KVCACHE_ASSIGN_OR_RETURN(const auto file, GgufFile::Open(path));
  KVCACHE_ASSIGN_OR_RETURN(const auto tokenizer, MakeTokenizer(*file));
  Comparison comparison(path.substr(path.rfind('/') + 1), *tokenizer);
  comparison.Strings(strings, 1, llama.at("plain"), SpecialText::kPlain);
  comparison.Strings(strings, 4, llama.at("parsed"), SpecialText::kParse);
  // If a file has no token types, llama.cpp reads byte tokens as text ("<0x0A>"), and our tokenizer
  // as bytes.
  if (file->Find("tokenizer.ggml.token_type") != nullptr) {
    comparison.Decoded(llama.at("plain"), llama.at("decoded"));
    comparison.Pieces(llama.at("pieces"));
  }
  comparison.Ends(llama.at("ends"));
  return comparison.Report();
}

std::vector<OracleString> ReadStrings(const Json& input, std::size_t every, std::size_t first) {
  std::vector<OracleString> strings;
  const Json& seen = input.at("strings");
  const Json& broken = input.at("broken");
  for (std::size_t i = first; i < seen.size(); i += every) {
    const std::string text = seen[i];
    const auto at = broken.find(std::to_string(i));
    strings.push_back({at == broken.end() ? text : FromBytes(*at), text});
  }
  return strings;
}

Status Compare(const std::string& folder, std::size_t count) {
  KVCACHE_ASSIGN_OR_RETURN(const Json input, ReadJson(folder + "/strings.json"));
  const std::size_t strings = input.at("strings").size();
  std::printf("%zu strings; every fourth one also with special tokens parsed\n", strings);
  if (strings < count) {
    return Status(StatusCode::kInternal, "strings.json has " + std::to_string(strings) +
                                             " strings; must have " + std::to_string(count));
  }
  bool equal = true;
  for (std::size_t i = 0; i < input.at("models").size(); ++i) {
    const Json& model = input.at("models")[i];
    KVCACHE_ASSIGN_OR_RETURN(const Json llama,
                             ReadJson(folder + "/llama." + std::to_string(i) + ".json"));
    KVCACHE_ASSIGN_OR_RETURN(
        const bool same,
        CompareModel(model.at("path"), ReadStrings(input, model.at("every"), model.at("first")),
                     llama));
    equal = equal && same;
  }
  return equal ? Status::Ok() : Status(StatusCode::kInternal, "the tokenizers differ");
}

int Main(const std::vector<std::string>& arguments) {
  Status status(StatusCode::kInvalidArgument,
                "usage: prepare FOLDER COUNT [MODEL...] | compare FOLDER COUNT");
  const std::size_t count = arguments.size() > 2 ? std::stoul(arguments[2]) : 0;
  if (arguments.size() >= 3 && arguments[0] == "prepare") {
    status = Prepare(arguments[1], count, {arguments.begin() + 3, arguments.end()});
  } else if (arguments.size() == 3 && arguments[0] == "compare") {
    status = Compare(arguments[1], count);
  }
  if (!status.ok()) std::fprintf(stderr, "tokenizer_oracle: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace kvcache

int main(int argc, char** argv) {
  return kvcache::Main({argv + 1, argv + argc});
}
