#include "oracle_vocabularies.h"

#include <algorithm>
#include <random>
#include <set>

#include "gguf/gguf_writer.h"
#include "spm_vocabulary/invented_text.h"
#include "spm_vocabulary/spm_trainer.h"

namespace kvcache {
namespace {

using spm_vocabulary::AddToken;
using spm_vocabulary::BuildSpmVocabulary;
using spm_vocabulary::InventedText;

bool Holds(const TokenizerData& data, const std::string& text) {
  return std::find(data.tokens.begin(), data.tokens.end(), text) != data.tokens.end();
}

void AddIfNew(const std::string& text, TokenKind kind, float score, TokenizerData* data) {
  if (!Holds(*data, text)) AddToken(text, kind, score, data);
}

TokenizerData Prose() {
  TokenizerData data = BuildSpmVocabulary(InventedText(1).Text(2000000, 30), 8000);
  for (const char* text : {"<|im_start|>", "<|im_end|>", "[INST]", "[/INST]"}) {
    AddIfNew(text, TokenKind::kControl, 0, &data);
  }
  for (const char* text : {"abc", "bcd", "\n\n"}) {
    AddIfNew(text, TokenKind::kUserDefined, 0, &data);
  }
  return data;
}

// Returns a vocabulary whose marks and HTML tags are user-defined, as in many files.
TokenizerData Marks() {
  TokenizerData data = BuildSpmVocabulary(InventedText(12).Text(200000, 30), 3000);
  for (const char* text : {"<|im_start|>", "<|im_end|", "[INST]", "[/INST]", "<s><s>", "<b>",
                           "</table>", "##", "\n\n"}) {
    AddIfNew(text, TokenKind::kUserDefined, 0, &data);
  }
  return data;
}

TokenizerData Code() {
  InventedText source(2);
  std::string text;
  while (text.size() < 300000) text += source.CodeLine() + "\n";
  TokenizerData data = BuildSpmVocabulary(text, 3000);
  data.add_space_prefix = false;
  data.add_bos = false;
  std::string run;
  for (int n = 2; n <= 16; ++n) {
    AddIfNew(std::string(static_cast<std::size_t>(n), ' '), TokenKind::kUserDefined, 0, &data);
    AddIfNew(std::string(static_cast<std::size_t>(n), '\n'), TokenKind::kUserDefined, 0, &data);
  }
  AddIfNew("<|im_end|>", TokenKind::kNormal, 0, &data);  // recognised by its text
  AddIfNew("<|im_start|>", TokenKind::kControl, 0, &data);
  data.eot.reset();
  return data;
}

TokenizerData Tangle() {
  TokenizerData data = BuildSpmVocabulary("", spm_vocabulary::kFixedTokens);
  std::mt19937_64 random(3);
  const std::vector<std::string> letters = {"a",  "b",      "c", "d",  "e",  "0",  "1",
                                            "▁",  "▁",      "é", "中", "文", "字", "ж",
                                            "\n", "\u0301", "👍", "<",  "s",  ">"};
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (std::uint64_t n = 1 + random() % 5; n > 0; --n) {
      text += letters[random() % letters.size()];
      if (random() % 2 == 0) text += letters[random() % 5];
    }
    const auto score = static_cast<float>(random() % 12) - 10;
    // User-defined tokens have no U+2581, because the comparison of pieces excludes it.
    const bool user_defined = i % 40 == 0 && text.find("▁") == std::string::npos;
    AddIfNew(text, user_defined ? TokenKind::kUserDefined : TokenKind::kNormal, score, &data);
  }
  data.bos = 2;
  data.eos = 1;
  return data;
}

TokenizerData Bare() {
  TokenizerData data;
  data.tokens = {"<unk>", "<s>", "</s>"};
  for (int byte = 0; byte < 256; ++byte) {
    // Printable ASCII bytes are tokens of their own, other bytes are byte tokens.
    if (byte > 0x20 && byte < 0x7F) {
      data.tokens.emplace_back(1, static_cast<char>(byte));
    } else {
      data.tokens.push_back(BuildSpmVocabulary("", 259).tokens[static_cast<std::size_t>(3 + byte)]);
    }
  }
  for (const char* text : {"▁", "th", "the", "▁the", "he", "▁t", "in", "er", "▁a", "an", "and"}) {
    data.tokens.emplace_back(text);
  }
  return data;
}

void SetBytes(std::string_view key, std::string_view bytes, GgufHeader* header) {
  header->SetEntry({.key = key,
                    .type = GgufType::kArray,
                    .element = GgufType::kUint8,
                    .count = bytes.size(),
                    .bytes = std::as_bytes(std::span(bytes))});
}

}  // namespace

std::vector<OracleVocabulary> SpmVocabularies() {
  return {{"prose", Prose(), {}},
          {"code", Code(), {}},
          {"tangle", Tangle(), {}},
          {"bare", Bare(), {}},
          {"marks", Marks(), {}}};
}

Status WriteVocabulary(const TokenizerData& data, const std::string& path) {
  GgufHeader header;
  header.SetString("general.architecture", "llama");
  for (const char* key : {"context_length", "embedding_length", "block_count",
                          "feed_forward_length", "attention.head_count"}) {
    header.SetUint32(std::string("llama.") + key, 1);
  }
  header.SetFloat32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  header.SetString("tokenizer.ggml.model", data.model);
  header.SetStrings("tokenizer.ggml.tokens", data.tokens);
  if (!data.scores.empty()) header.SetFloats("tokenizer.ggml.scores", data.scores);
  if (!data.types.empty()) header.SetInts("tokenizer.ggml.token_type", data.types);
  for (const SpecialRole& role : SpecialRoles()) {
    const auto& id = data.*role.given;
    if (!id.has_value()) continue;
    header.SetUint32("tokenizer.ggml." + std::string(role.key), static_cast<std::uint32_t>(*id));
  }
  if (!data.pre.empty()) header.SetString("tokenizer.ggml.pre", data.pre);
  if (!data.merges.empty()) header.SetStrings("tokenizer.ggml.merges", data.merges);
  if (!data.charsmap.empty())
    SetBytes("tokenizer.ggml.precompiled_charsmap", data.charsmap, &header);
  const auto set_flag = [&header](std::string_view key, std::optional<bool> flag) {
    if (flag) header.SetBool("tokenizer.ggml." + std::string(key), *flag);
  };
  set_flag("add_bos_token", data.add_bos);
  set_flag("add_space_prefix", data.add_space_prefix);
  set_flag("remove_extra_whitespaces", data.remove_extra_spaces);
  set_flag("normalizer.strip_accents", data.strip_accents);
  set_flag("normalizer.lowercase", data.lowercase);
  if (data.compose) header.SetBool(kComposeKey, *data.compose);
  KVCACHE_ASSIGN_OR_RETURN(auto writer, GgufWriter::Create(path, std::move(header)));
  return writer->Finish();
}

}  // namespace kvcache
