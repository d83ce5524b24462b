// The ids of special tokens and the chat template, and everything of a tokenizer as GGUF keys.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "convert/embedding/hf_text_ends.h"
#include "convert/hf_tokenizer.h"

namespace kvcache {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxTokenizerBytes = std::size_t{256} << 20;
constexpr std::size_t kMaxTemplateBytes = std::size_t{4} << 20;
constexpr const char* kTokenizer = "tokenizer.json";

struct Role {
  const char* name;  // in tokenizer_config.json
  const char* id;    // in config.json and generation_config.json
  std::optional<std::int64_t> TokenizerData::*target;
  const char* key;  // in the file
};

constexpr Role kRoles[] = {
    {"bos_token", "bos_token_id", &TokenizerData::bos, "tokenizer.ggml.bos_token_id"},
    {"eos_token", "eos_token_id", &TokenizerData::eos, "tokenizer.ggml.eos_token_id"},
    {"unk_token", "unk_token_id", &TokenizerData::unknown, "tokenizer.ggml.unknown_token_id"},
    {"pad_token", "pad_token_id", &TokenizerData::padding, "tokenizer.ggml.padding_token_id"},
};

// Returns the ids under a key: a number, or an array of numbers. Ids that are not below `tokens` are left out; those
// of the begin and the end of a text are refused, because a model without them never ends.
Result<std::vector<std::int64_t>> IdsOf(const HfConfig& config, const Role& role,
                                        std::int64_t tokens) {
  std::vector<std::int64_t> ids;
  const json* value = config.Find(role.id);
  if (value == nullptr) return ids;
  const bool must_fit = role.target == &TokenizerData::bos || role.target == &TokenizerData::eos;
  const json list = value->is_array() ? *value : json::array({*value});
  for (const json& id : list) {
    const bool fits =
        id.is_number_unsigned() && id.get<std::uint64_t>() < static_cast<std::uint64_t>(tokens);
    if (!id.is_number_integer() || (must_fit && !fits)) {
      return config.Refuse(role.id, StrCat("must be an id of the vocabulary, from 0 to ",
                                           tokens - 1, ", or several"));
    }
    if (fits) ids.push_back(id.get<std::int64_t>());
  }
  return ids;
}

// Returns a token's text: a text, or an object with the text under "content".
std::string TokenText(const HfConfig& config, const char* key) {
  const json* value = config.Find(key);
  if (value != nullptr && value->is_object() && value->contains("content")) {
    value = &(*value)["content"];
  }
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

// Gemma 4's markers inside an answer belong to its text: readers of answers need them.
void ShowMarkers(TokenizerData* data) {
  for (const std::string_view marker : {"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>",
                                        "<|tool_response>", "<tool_response|>", "<|\"|>"}) {
    const auto found = std::find(data->tokens.begin(), data->tokens.end(), marker);
    if (found == data->tokens.end()) continue;
    data->types[static_cast<std::size_t>(found - data->tokens.begin())] =
        static_cast<std::int32_t>(TokenKind::kUserDefined);
  }
}

class TokenRoles {
 public:
  TokenRoles(const HfDirectory& directory, const HfConfig& config, TokenizerData* data)
      : directory_(directory), config_(config), data_(data) {}

  Status Read() {
    for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
      if (!directory_.Has(name)) continue;
      KVCACHE_ASSIGN_OR_RETURN(const HfConfig file, HfConfig::Read(directory_, name));
      KVCACHE_RETURN_IF_ERROR(ReadTexts(file));
    }
    if (directory_.Has("generation_config.json")) {
      KVCACHE_ASSIGN_OR_RETURN(const HfConfig file,
                               HfConfig::Read(directory_, "generation_config.json"));
      KVCACHE_RETURN_IF_ERROR(ReadIds(file));
    }
    return ReadIds(config_);
  }

 private:
  Status ReadTexts(const HfConfig& file) {
    for (const Role& role : kRoles) {
      const std::string text = TokenText(file, role.name);
      if (text.empty() || (data_->*role.target)) continue;
      const auto found = std::find(data_->tokens.begin(), data_->tokens.end(), text);
      if (found != data_->tokens.end()) data_->*role.target = found - data_->tokens.begin();
    }
    const json* add = file.Find("add_bos_token");
    if (add != nullptr && add->is_boolean()) data_->add_bos = add->get<bool>();
    add = file.Find("add_eos_token");
    if (add != nullptr && add->is_boolean()) data_->add_eos = add->get<bool>();
    return Status::Ok();
  }

  // A list of ends has the end of a text and the end of a turn.
  Status ReadIds(const HfConfig& file) {
    for (const Role& role : kRoles) {
      KVCACHE_ASSIGN_OR_RETURN(std::vector<std::int64_t> ids,
                               IdsOf(file, role, static_cast<std::int64_t>(data_->tokens.size())));
      if (ids.empty()) continue;
      if (!(data_->*role.target)) data_->*role.target = ids[0];
      if (role.target != &TokenizerData::eos || data_->eot) continue;
      std::erase(ids, *data_->eos);
      if (ids.size() == 1) data_->eot = ids[0];
    }
    return Status::Ok();
  }

  const HfDirectory& directory_;
  const HfConfig& config_;
  TokenizerData* data_;
};

// A chat template and its name: "default" for chats, "tool_use" for chats with tools, and others.
using NamedTemplate = std::pair<std::string, std::string>;
constexpr std::string_view kDefault = "default";

bool IsNamedTemplate(const json& value) {
  return value.is_object() && value.value("name", json()).is_string() &&
         value.value("template", json()).is_string();
}

// Reads the templates of a file with JSON: one text, or a list of texts with names.
Status ReadTemplatesOf(const HfDirectory& directory, const char* name,
                       std::vector<NamedTemplate>* templates) {
  KVCACHE_ASSIGN_OR_RETURN(const HfConfig file, HfConfig::Read(directory, name));
  const json* value = file.Find("chat_template");
  if (value == nullptr) return Status::Ok();
  if (value->is_string()) templates->emplace_back(kDefault, value->get<std::string>());
  if (!value->is_array()) return Status::Ok();
  for (const json& each : *value) {
    if (!IsNamedTemplate(each)) continue;
    templates->emplace_back(each["name"].get<std::string>(), each["template"].get<std::string>());
  }
  return Status::Ok();
}

// Returns the chat templates. Files of their own come before those in JSON.
Result<std::vector<NamedTemplate>> ReadChatTemplates(const HfDirectory& directory) {
  constexpr std::string_view kEnding = ".jinja";
  std::vector<NamedTemplate> templates;
  if (directory.Has("chat_template.jinja")) {
    KVCACHE_ASSIGN_OR_RETURN(std::string text,
                             directory.ReadText("chat_template.jinja", kMaxTemplateBytes));
    templates.emplace_back(kDefault, std::move(text));
  }
  for (const std::string& name : directory.TemplateNames()) {
    if (!name.ends_with(kEnding)) continue;
    KVCACHE_ASSIGN_OR_RETURN(
        std::string text,
        directory.ReadText(StrCat(HfDirectory::kTemplates, '/', name), kMaxTemplateBytes));
    templates.emplace_back(name.substr(0, name.size() - kEnding.size()), std::move(text));
  }
  for (const char* name : {"chat_template.json", "tokenizer_config.json"}) {
    if (!templates.empty() || !directory.Has(name)) continue;
    KVCACHE_RETURN_IF_ERROR(ReadTemplatesOf(directory, name, &templates));
  }
  return templates;
}

// Writes the templates as GGUF has them: the default one under the key, others behind their names.
void SetTemplates(const std::vector<NamedTemplate>& templates, GgufHeader* header) {
  std::vector<std::string> names;
  for (const auto& [name, text] : templates) {
    if (text.empty()) continue;
    if (name == kDefault) {
      header->SetString("tokenizer.chat_template", text);
    } else {
      header->SetString(StrCat("tokenizer.chat_template.", name), text);
      names.push_back(name);
    }
  }
  if (!names.empty()) header->SetStrings("tokenizer.chat_templates", names);
}

void SetKeys(const TokenizerData& data, GgufHeader* header) {
  header->SetString("tokenizer.ggml.model", data.model);
  if (!data.pre.empty()) header->SetString("tokenizer.ggml.pre", data.pre);
  header->SetStrings("tokenizer.ggml.tokens", data.tokens);
  if (!data.scores.empty()) header->SetFloats("tokenizer.ggml.scores", data.scores);
  header->SetInts("tokenizer.ggml.token_type", data.types);
  if (!data.merges.empty()) header->SetStrings("tokenizer.ggml.merges", data.merges);
  for (const Role& role : kRoles) {
    const auto& id = data.*role.target;
    if (id) header->SetUint32(role.key, static_cast<std::uint32_t>(*id));
  }
  if (data.eot) {
    header->SetUint32("tokenizer.ggml.eot_token_id", static_cast<std::uint32_t>(*data.eot));
  }
  if (data.add_bos) header->SetBool("tokenizer.ggml.add_bos_token", *data.add_bos);
  if (data.add_eos) header->SetBool("tokenizer.ggml.add_eos_token", *data.add_eos);
  if (data.add_space_prefix) {
    header->SetBool("tokenizer.ggml.add_space_prefix", *data.add_space_prefix);
  }
  if (data.compose) header->SetBool(kComposeKey, *data.compose);
  if (data.separator) {
    header->SetUint32("tokenizer.ggml.seperator_token_id",  // sic
                      static_cast<std::uint32_t>(*data.separator));
  }
  if (data.remove_extra_spaces) {
    header->SetBool("tokenizer.ggml.remove_extra_whitespaces", *data.remove_extra_spaces);
  }
  if (data.strip_accents) {
    header->SetBool("tokenizer.ggml.normalizer.strip_accents", *data.strip_accents);
  }
  if (data.lowercase) header->SetBool("tokenizer.ggml.normalizer.lowercase", *data.lowercase);
  if (!data.charsmap.empty()) {
    header->SetBytes("tokenizer.ggml.precompiled_charsmap",
                     std::as_bytes(std::span(data.charsmap)));
  }
}

// Returns the id of a token's text.
std::optional<std::int64_t> IdOf(const TokenizerData& data, std::string_view text) {
  const auto found = std::find(data.tokens.begin(), data.tokens.end(), text);
  if (text.empty() || found == data.tokens.end()) return std::nullopt;
  return found - data.tokens.begin();
}

// Sets what texts of an embedding model have around them. Without a post-processor these are the tokens of BERT's
// vocabularies, or none.
void SetTextEnds(const std::optional<HfTextEnds>& given, TokenizerData* data, GgufHeader* header) {
  const bool is_word_piece = data->model == "bert";
  if (!given && !is_word_piece) return;
  const HfTextEnds ends = given.value_or(HfTextEnds{"[CLS]", "[SEP]", 1});
  const auto begin = IdOf(*data, ends.begin);
  const auto end = IdOf(*data, ends.end);
  data->add_bos = begin.has_value();
  data->add_eos = end.has_value();
  if (begin) data->bos = begin;
  if (end) data->eos = data->separator = end;
  if (ends.between) header->SetBool("tokenizer.ggml.add_sep_token", *ends.between == 2);
}

}  // namespace

Status AddHfTokenizer(const HfDirectory& directory, const HfConfig& config,
                      const HfTokenizerUse& use, GgufHeader* header,
                      std::vector<std::string>* notes) {
  std::optional<HfTextEnds> ends;
  HfTokenizer tokenizer;
  {
    if (!directory.Has(kTokenizer)) {
      return NotFound(StrCat(directory.path(), ": there is no ", kTokenizer,
                             "; other forms of vocabularies (tokenizer.model) are not read"));
    }
    KVCACHE_ASSIGN_OR_RETURN(const json value, directory.ReadJson(kTokenizer, kMaxTokenizerBytes));
    const std::string place = StrCat(directory.path(), "/", kTokenizer);
    auto converted = ConvertHfTokenizer(value, use.rows, use.fallback);
    if (!converted.ok()) return std::move(converted).TakeStatus().WithContext(place);
    tokenizer = std::move(converted).value();
    if (use.embeds) {
      auto read = ReadHfTextEnds(value);
      if (!read.ok()) return std::move(read).TakeStatus().WithContext(place);
      ends = std::move(read).value();
    }
  }
  KVCACHE_RETURN_IF_ERROR(TokenRoles(directory, config, &tokenizer.data).Read());
  if (use.embeds) SetTextEnds(ends, &tokenizer.data, header);
  // SentencePiece vocabularies begin texts with a token unless their files say otherwise.
  const bool byte_level = tokenizer.data.model == "gpt2";
  if (!tokenizer.data.add_bos) tokenizer.data.add_bos = !byte_level;
  if (!tokenizer.data.add_eos) tokenizer.data.add_eos = false;
  if (tokenizer.data.model == "gemma4") ShowMarkers(&tokenizer.data);
  SetKeys(tokenizer.data, header);
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<NamedTemplate> templates,
                           ReadChatTemplates(directory));
  SetTemplates(templates, header);
  for (std::string& note : tokenizer.notes) notes->push_back(std::move(note));
  return Status::Ok();
}

}  // namespace kvcache
