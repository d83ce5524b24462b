#include "model/pre_tokenizer.h"

#include "base/strings.h"

namespace kvcache {
namespace {

// "'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
constexpr WordRules kGpt2Words = {.contraction = Contraction::kLowerCase};

// "(?i:'s|…)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|…"
constexpr WordRules kLlama3Words = {.contraction = Contraction::kAnyCase,
                                    .lead = WordLead::kAny,
                                    .most_digits = 3,
                                    .tail = "\r\n",
                                    .lines = true};

constexpr WordRules With(WordRules rules, std::uint32_t most_digits) {
  rules.most_digits = most_digits;
  return rules;
}

constexpr WordRules kQwen35Words = {.contraction = Contraction::kAnyCase,
                                    .lead = WordLead::kAny,
                                    .letters = kLetter | kMark,
                                    .most_digits = 1,
                                    .others = kPunctuation | kSymbol | kOther,
                                    .tail = "\r\n",
                                    .lines = true};

constexpr WordRules kTekkenWords = {.lead = WordLead::kAny,
                                    .word_case = WordCase::kCuts,
                                    .most_digits = 1,
                                    .tail = "\r\n/",
                                    .lines = true};

constexpr WordRules kGpt4oWords = {.lead = WordLead::kAny,
                                   .word_case = WordCase::kCuts,
                                   .suffix = Contraction::kAnyCase,
                                   .most_digits = 3,
                                   .tail = "\r\n/",
                                   .lines = true};

constexpr WordRules kSeedCoderWords = {
    .contraction = Contraction::kAnyCase, .lead = WordLead::kAny, .most_digits = 1, .lines = true};

constexpr WordRules kUfakzekaWords = {
    .lead = WordLead::kAny, .most_digits = 1, .tail = "\r\n", .lines = true};

constexpr WordRules kMiniCpmWords = {.contraction = Contraction::kAnyCase,
                                     .lead = WordLead::kAny,
                                     .most_digits = ~std::uint32_t{0},
                                     .tail = "\r\n",
                                     .lines = true};

constexpr CutStage Words(const WordRules& rules) {
  return {.next = NextWord, .words = rules};
}

constexpr CutStage Runs(const RunRules& rules) {
  return {.next = NextRun, .runs = rules};
}

constexpr CutStage Numbers(std::uint32_t most) {
  return Runs({.classes = kNumber, .most = most});
}

// Han, Hiragana and Katakana; and what DeepSeek's coder takes for East Asia.
constexpr CodePoints kDeepSeek3Asia[] = {{0x4E00, 0x9FA5}, {0x3040, 0x30FF}};
constexpr CodePoints kDeepSeekCoderAsia[] = {{0x0800, 0x9FA5}, {0xAC00, 0xD7FF}};

constexpr CutStage kGpt2[] = {Words(kGpt2Words)};
constexpr CutStage kStarCoder[] = {Numbers(1), Words(kGpt2Words)};
constexpr CutStage kLlama3[] = {Words(kLlama3Words)};
constexpr CutStage kQwen2[] = {Words(With(kLlama3Words, 1))};
constexpr CutStage kQwen35[] = {Words(kQwen35Words)};
constexpr CutStage kTekken[] = {Words(kTekkenWords)};
constexpr CutStage kGpt4o[] = {Words(kGpt4oWords)};
constexpr CutStage kSeedCoder[] = {Words(kSeedCoderWords)};
constexpr CutStage kUfakzeka[] = {Words(kUfakzekaWords)};
constexpr CutStage kMiniCpm5[] = {Numbers(3), Words(kMiniCpmWords)};
constexpr CutStage kLaguna[] = {{.next = NextLine}, Words(With(kLlama3Words, 1))};
constexpr CutStage kDeepSeek3[] = {
    Numbers(3), Runs({.ranges = kDeepSeek3Asia}), {.next = NextDeepSeekPart}};
constexpr CutStage kDeepSeekCoder[] = {Runs({.ascii = "\r\n", .most = 1}),
                                       Runs({.classes = kLetter, .takes_space = true}),
                                       Runs({.classes = kPunctuation, .takes_space = true}),
                                       Runs({.ranges = kDeepSeekCoderAsia}), Numbers(1)};
constexpr CutStage kFalcon[] = {Runs({.classes = kPunctuation, .ascii = "$+<=>^~|`"}),
                                Words(kGpt2Words),
                                {.next = NextThreeDigits}};
constexpr CutStage kDefault[] = {Runs({.classes = kPunctuation, .ascii = "$+<=>^~|"}),
                                 Words(kGpt2Words),
                                 Numbers(~std::uint32_t{0}),
                                 {.next = NextThreeDigits}};

constexpr PreTokenizer MergesIgnored(std::string_view name, std::span<const CutStage> stages) {
  return {.name = name, .stages = stages, .ignore_merges = true, .add_bos = true};
}

constexpr PreTokenizer Exact(std::string_view name, std::span<const CutStage> stages) {
  return {.name = name, .stages = stages, .clean_spaces = false};
}

constexpr PreTokenizer kKnown[] = {
    {"default", kDefault},
    // Llama 3 and those who took its expression.
    MergesIgnored("llama-bpe", kLlama3),
    MergesIgnored("llama3", kLlama3),
    MergesIgnored("llama-v3", kLlama3),
    MergesIgnored("pixtral", kLlama3),
    MergesIgnored("falcon3", kLlama3),
    MergesIgnored("falcon-h1", kLlama3),
    MergesIgnored("lfm2", kLlama3),
    MergesIgnored("midm-2.0", kLlama3),
    {"dbrx", kLlama3},
    {"smaug-bpe", kLlama3},
    {"chatglm-bpe", kLlama3},
    {"glm4", kLlama3},
    {"minicpm5", kMiniCpm5, true},
    // GPT-4o's, with or without contractions.
    Exact("gpt-4o", kGpt4o),
    Exact("llama4", kGpt4o),
    Exact("kanana2", kGpt4o),
    Exact("talkie", kGpt4o),
    Exact("minimax-m2", kGpt4o),
    {"tekken", kTekken, true, true, false},
    // Qwen.
    Exact("qwen2", kQwen2),
    Exact("deepseek-r1-qwen", kQwen2),
    Exact("kormo", kQwen2),
    Exact("f2llmv2", kQwen2),
    Exact("hunyuan", kQwen2),
    Exact("solar-open", kQwen2),
    Exact("grok-2", kQwen2),
    {"stablelm2", kQwen2},
    {"megrez", kQwen2},
    Exact("qwen35", kQwen35),
    Exact("laguna", kLaguna),
    Exact("ufakzeka", kUfakzeka),
    Exact("bailingmoe", kQwen2),
    Exact("bailingmoe2", kQwen2),
    Exact("llada-moe", kQwen2),
    Exact("seed-coder", kSeedCoder),
    // DeepSeek.
    Exact("deepseek-v3", kDeepSeek3),
    Exact("hunyuan-dense", kDeepSeek3),
    Exact("joyai-llm", kDeepSeek3),
    Exact("hy_v4", kDeepSeek3),
    Exact("deepseek-coder", kDeepSeekCoder),
    // GPT-2, and GPT-2 with single digits.
    {"gpt-2", kGpt2},
    {"phi-2", kGpt2},
    {"mpt", kGpt2},
    {"olmo", kGpt2},
    {"jais", kGpt2},
    {"exaone4", kGpt2},
    {"gigachat", kGpt2},
    {"a.x-4.0", kGpt2},
    {"mellum", kGpt2},
    {"modern-bert", kGpt2},
    Exact("trillion", kGpt2),
    Exact("granite-docling", kGpt2),
    Exact("smollm", kStarCoder),
    Exact("command-r", kStarCoder),
    {"starcoder", kStarCoder},
    {"refact", kStarCoder},
    {"codeshell", kStarCoder},
    {"exaone", kStarCoder},
    {"minerva-7b", kStarCoder},
    {"mellum2", kStarCoder},
    {"falcon", kFalcon},
};

}  // namespace

std::span<const PreTokenizer> PreTokenizers() {
  return kKnown;
}

Result<const PreTokenizer*> FindPreTokenizer(std::string_view name) {
  if (name.empty()) name = "default";
  std::string names;
  for (const PreTokenizer& known : kKnown) {
    if (known.name == name) return &known;
    names += (names.empty() ? "" : ", ") + std::string(known.name);
  }
  return Status(StatusCode::kUnsupported,
                StrCat("pre-tokenizer ", Quoted(name, 64), " is not offered; there are: ", names));
}

}  // namespace kvcache
