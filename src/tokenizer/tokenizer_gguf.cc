// Reads `tokenizer.ggml.*` of a GGUF file into a TokenizerData.
#include <algorithm>
#include <cctype>
#include <string>

#include "gguf/gguf.h"
#include "tokenizer/tokenizer.h"

namespace kvcache {
namespace {

constexpr std::string_view kPrefix = "tokenizer.ggml.";

std::string Key(std::string_view name) {
  return std::string(kPrefix) + std::string(name);
}

Status ReadTokens(const GgufFile& file, TokenizerData* data) {
  KVCACHE_ASSIGN_OR_RETURN(const GgufStrings tokens, file.GetStrings(Key("tokens")));
  data->tokens.reserve(tokens.size());
  for (const std::string_view token : tokens) data->tokens.emplace_back(token);
  return Status::Ok();
}

// The pre-tokenizers of models whose files by Ollama's converter name none, or "default".
constexpr struct {
  std::string_view architecture, pre;
} kUnnamed[] = {{"gptoss", "gpt-4o"}, {"lfm2", "lfm2"}, {"mistral3", "tekken"}};

Status ReadPreTokenizer(const GgufFile& file, TokenizerData* data) {
  KVCACHE_ASSIGN_OR_RETURN(const std::string_view pre, file.GetStringOr(Key("pre"), ""));
  data->pre = pre;
  if (!pre.empty() && pre != "default") return Status::Ok();
  KVCACHE_ASSIGN_OR_RETURN(const std::string_view architecture,
                           file.GetStringOr("general.architecture", ""));
  for (const auto& unnamed : kUnnamed) {
    if (architecture == unnamed.architecture) data->pre = unnamed.pre;
  }
  return Status::Ok();
}

Status ReadMerges(const GgufFile& file, TokenizerData* data) {
  KVCACHE_RETURN_IF_ERROR(ReadPreTokenizer(file, data));
  KVCACHE_ASSIGN_OR_RETURN(const GgufStrings merges, file.GetStrings(Key("merges")));
  data->merges.reserve(merges.size());
  for (const std::string_view merge : merges) data->merges.emplace_back(merge);
  return Status::Ok();
}

// Reads bytes, which files store as signed or unsigned integers.
Status ReadCharsmap(const GgufFile& file, TokenizerData* data) {
  const std::string key = Key("precompiled_charsmap");
  if (file.Find(key) == nullptr) return Status::Ok();
  KVCACHE_ASSIGN_OR_RETURN(const GgufInts bytes, file.GetInts(key));
  data->charsmap.reserve(bytes.size());
  for (const std::int64_t byte : bytes) data->charsmap.push_back(static_cast<char>(byte));
  return Status::Ok();
}

Status ReadScores(const GgufFile& file, TokenizerData* data) {
  if (file.Find(Key("scores")) == nullptr) return Status::Ok();
  if (auto floats = file.GetFloats(Key("scores")); floats.ok()) {
    data->scores.assign(floats->begin(), floats->end());
    return Status::Ok();
  }
  KVCACHE_ASSIGN_OR_RETURN(const GgufInts ints, file.GetInts(Key("scores")));
  for (const std::int64_t score : ints) data->scores.push_back(static_cast<float>(score));
  return Status::Ok();
}

Status ReadTypes(const GgufFile& file, TokenizerData* data) {
  if (file.Find(Key("token_type")) == nullptr) return Status::Ok();
  KVCACHE_ASSIGN_OR_RETURN(const GgufInts types, file.GetInts(Key("token_type")));
  for (const std::int64_t type : types) {
    // Clamping keeps invalid types invalid, so that Vocabulary::Make rejects them.
    data->types.push_back(static_cast<std::int32_t>(std::clamp<std::int64_t>(type, -1, 1 << 30)));
  }
  return Status::Ok();
}

Status ReadIds(const GgufFile& file, TokenizerData* data) {
  const auto read = [&file](std::string_view name, std::optional<std::int64_t>* id) {
    if (file.Find(Key(name)) == nullptr) return Status::Ok();
    KVCACHE_ASSIGN_OR_RETURN(*id, file.GetInt(Key(name)));
    return Status::Ok();
  };
  for (const SpecialRole& role : SpecialRoles()) {
    KVCACHE_RETURN_IF_ERROR(read(role.key, &(data->*role.given)));
  }
  // Older names of the fill-in-the-middle ids.
  KVCACHE_RETURN_IF_ERROR(read("prefix_token_id", &data->fim_prefix));
  KVCACHE_RETURN_IF_ERROR(read("suffix_token_id", &data->fim_suffix));
  return read("middle_token_id", &data->fim_middle);
}

Status ReadFlags(const GgufFile& file, TokenizerData* data) {
  const auto read = [&file](std::string_view name, std::optional<bool>* flag) {
    if (file.Find(Key(name)) == nullptr) return Status::Ok();
    KVCACHE_ASSIGN_OR_RETURN(*flag, file.GetBool(Key(name)));
    return Status::Ok();
  };
  KVCACHE_RETURN_IF_ERROR(read("add_bos_token", &data->add_bos));
  KVCACHE_RETURN_IF_ERROR(read("add_eos_token", &data->add_eos));
  KVCACHE_RETURN_IF_ERROR(read("add_space_prefix", &data->add_space_prefix));
  KVCACHE_RETURN_IF_ERROR(read("remove_extra_whitespaces", &data->remove_extra_spaces));
  KVCACHE_RETURN_IF_ERROR(read("normalizer.strip_accents", &data->strip_accents));
  KVCACHE_RETURN_IF_ERROR(read("normalizer.lowercase", &data->lowercase));
  if (file.Find(kComposeKey) != nullptr) {
    KVCACHE_ASSIGN_OR_RETURN(data->compose, file.GetBool(kComposeKey));
  }
  return Status::Ok();
}

// GGUF has no key for tokens that strip white space. llama.cpp recognises phi-3 by the model's
// name: all its special tokens except three strip the white space that follows.
Status ReadStrips(const GgufFile& file, TokenizerData* data) {
  KVCACHE_ASSIGN_OR_RETURN(const std::string_view name, file.GetStringOr("general.name", ""));
  std::string lower(name);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (lower.find("phi-3") == std::string::npos && lower.find("phi3") == std::string::npos) {
    return Status::Ok();
  }
  for (std::size_t i = 0; i < std::min(data->types.size(), data->tokens.size()); ++i) {
    const std::int32_t type = data->types[i];
    const std::string& text = data->tokens[i];
    const bool special = type >= 2 && type <= 4;
    if (special && text != "<unk>" && text != "<s>" && text != "<|endoftext|>") {
      data->strip_after.push_back(static_cast<std::int64_t>(i));
    }
  }
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> MakeTokenizer(const GgufFile& file) {
  TokenizerData data;
  KVCACHE_ASSIGN_OR_RETURN(const std::string_view model, file.GetString(Key("model")));
  data.model = model;
  if (data.model == "gpt2" || data.model == "gemma4") {
    KVCACHE_RETURN_IF_ERROR(ReadMerges(file, &data));
  }
  if (data.model == "t5") KVCACHE_RETURN_IF_ERROR(ReadCharsmap(file, &data));
  const auto& kinds = {"llama", "gpt2", "t5", "gemma4", "bert"};
  if (std::ranges::find(kinds, data.model) != std::end(kinds)) {
    KVCACHE_RETURN_IF_ERROR(ReadTokens(file, &data));
    KVCACHE_RETURN_IF_ERROR(ReadScores(file, &data));
    KVCACHE_RETURN_IF_ERROR(ReadTypes(file, &data));
    KVCACHE_RETURN_IF_ERROR(ReadIds(file, &data));
    KVCACHE_RETURN_IF_ERROR(ReadFlags(file, &data));
    KVCACHE_RETURN_IF_ERROR(ReadStrips(file, &data));
  }
  return MakeTokenizer(data);
}

}  // namespace kvcache
