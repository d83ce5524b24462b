#include <algorithm>
#include <random>

#include "oracle_vocabularies.h"
#include "spm_vocabulary/bpe_trainer.h"
#include "spm_vocabulary/invented_text.h"
#include "spm_vocabulary/spm_trainer.h"
#include "tokenizer/bpe/byte_alphabet.h"
#include "tokenizer/bpe/pre_tokenizer.h"

namespace kvcache {
namespace {

using spm_vocabulary::BuildBpeVocabulary;
using spm_vocabulary::InventedText;

constexpr int kTokens = 1500;
constexpr std::size_t kTextBytes = 100000;

// One pre-tokenizer for each usual way of splitting text.
constexpr std::string_view kTrained[] = {
    "default", "llama-bpe",   "minicpm5",       "gpt-4o",       "tekken", "qwen2",
    "qwen35",  "laguna",      "ufakzeka",       "seed-coder",   "gpt-2",  "smollm",
    "falcon",  "deepseek-v3", "deepseek-coder", "deepseek-llm",
};

// Those of single families: an untrained vocabulary shows their cuts.
constexpr std::string_view kRare[] = {
    "spark2_5", "afmoe", "youtu",  "tiny_aya", "kimi-k2",   "exaone-moe",
    "jais-2",   "bloom", "viking", "superbpe", "chameleon",
};

bool Holds(const TokenizerData& data, const std::string& text) {
  return std::find(data.tokens.begin(), data.tokens.end(), text) != data.tokens.end();
}

void AddToken(const std::string& text, TokenKind kind, TokenizerData* data) {
  if (Holds(*data, text)) return;
  data->tokens.push_back(text);
  data->types.push_back(static_cast<std::int32_t>(kind));
}

void SetEnds(TokenizerData* data) {
  const auto id = [data](std::string_view text) {
    return std::find(data->tokens.begin(), data->tokens.end(), text) - data->tokens.begin();
  };
  data->bos = id("<s>");
  data->eos = id("</s>");
}

const std::vector<std::string> kControls = {"<s>", "</s>", "<|im_start|>", "<|im_end|>", "[INST]"};

const std::string& TrainingText() {
  static const std::string text = [] {
    InventedText source(5);
    std::string all = source.Text(kTextBytes, 35);
    for (int i = 0; i < 2000; ++i) all += " " + std::to_string(source.Below(100000)) + ".";
    for (int i = 0; i < 300; ++i) all += " don't WE'LL it's they'Ve camelCase HTTPServer //\n\n  x";
    return all;
  }();
  return text;
}

TokenizerData Trained(std::string_view pre) {
  TokenizerData data = BuildBpeVocabulary(TrainingText(), kTokens, pre, kControls);
  for (const char* added : {"abc", "bcd", "\n\n\n", "   "}) {
    AddToken(added, TokenKind::kUserDefined, &data);
  }
  SetEnds(&data);
  return data;
}

// Returns a vocabulary trained on unsplit text, so that the ids show every place where a
// pre-tokenizer splits.
TokenizerData Uncut() {
  TokenizerData data =
      BuildBpeVocabulary(TrainingText(), kTokens, spm_vocabulary::kUncut, kControls);
  SetEnds(&data);
  return data;
}

// Returns a vocabulary whose marks and HTML tags are all user-defined.
TokenizerData Marks() {
  TokenizerData data = BuildBpeVocabulary(TrainingText(), 500, "qwen2", {"<s>", "</s>"});
  for (const char* text : {"<|im_start|>", "<|im_end|", "[INST]", "[/INST]", "<b>", "##", "\n\n"}) {
    AddToken(text, TokenKind::kUserDefined, &data);
  }
  SetEnds(&data);
  return data;
}

// Returns a vocabulary with merges in an order that training would not give, many of them twice. It
// has a control token ("cab") that merges lead to, and tokens that no merge leads to.
TokenizerData Tangle(std::string_view pre) {
  TokenizerData data = BuildBpeVocabulary("", 256, pre, kControls);
  std::mt19937_64 random(7);
  std::vector<std::string> symbols = {"a", "b", "c",  "d",  "e", " ", "0",
                                      "1", "é", "中", "\n", ".", "<", "/"};
  AddToken("cab", TokenKind::kControl, &data);
  for (int i = 0; i < 3000; ++i) {
    const std::string& left = symbols[random() % std::min<std::size_t>(symbols.size(), 200)];
    const std::string& right = symbols[random() % std::min<std::size_t>(symbols.size(), 60)];
    if (left.size() + right.size() > 24) continue;
    data.merges.push_back(SpellBytes(left) + " " + SpellBytes(right));
    const std::string both = left + right;
    AddToken(SpellBytes(both), TokenKind::kNormal, &data);
    symbols.push_back(both);
  }
  // Merges bytes to characters of several bytes.
  for (const char* character : {"é", "中"}) {
    std::string text = character;
    for (std::size_t n = 1; n < text.size(); ++n) {
      data.merges.push_back(SpellBytes(text.substr(0, n)) + " " + SpellBytes(text.substr(n, 1)));
      AddToken(SpellBytes(text.substr(0, n + 1)), TokenKind::kNormal, &data);
    }
  }
  for (const char* unreachable : {"zzz", "Ġunreachable", "qq"}) {
    AddToken(unreachable, TokenKind::kNormal, &data);
  }
  data.merges.insert(data.merges.end(), {"c ab", "ca b", "a b", "c a", "nonsense", " x", "x "});
  SetEnds(&data);
  return data;
}

}  // namespace

std::vector<OracleVocabulary> BpeVocabularies() {
  std::vector<OracleVocabulary> all;
  for (const std::string_view pre : kTrained) {
    all.push_back({"bpe-" + std::string(pre), Trained(pre), {.every = 2}});
  }
  for (const char* pre : {"gpt-2", "llama-bpe"}) {
    all.push_back({std::string("tangle-") + pre, Tangle(pre), {.every = 4}});
  }
  all.push_back({"bpe-marks", Marks(), {.every = 4}});
  TokenizerData uncut = Uncut();
  for (const PreTokenizer& known : PreTokenizers()) {
    uncut.pre = known.name;
    const bool first = std::ranges::find(kTrained, known.name) != std::end(kTrained);
    const bool rare = std::ranges::find(kRare, known.name) != std::end(kRare);
    all.push_back({"uncut-" + uncut.pre, uncut,
                   first  ? StringShare{.every = 2, .first = 1}
                   : rare ? StringShare{.every = 3}
                          : StringShare{.every = 50}});
  }
  return all;
}

}  // namespace kvcache
