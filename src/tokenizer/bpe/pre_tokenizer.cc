#include "tokenizer/bpe/pre_tokenizer.h"

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {
namespace {

constexpr std::uint32_t kAll = ~std::uint32_t{0};  // numbers in a word

// "'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
constexpr WordRules kGpt2Words = {.contraction = Contraction::kLowerCase};

// Llama 3:
// "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
// "|\s*[\r\n]+|\s+(?!\S)|\s+"
constexpr WordRules kLlama3Words = {.contraction = Contraction::kAnyCase,
                                    .lead = WordLead::kAny,
                                    .max_digits = 3,
                                    .tail = "\r\n",
                                    .spaces = Spaces::kLines};

constexpr WordRules WithMaxDigits(WordRules rules, std::uint32_t max_digits) {
  rules.max_digits = max_digits;
  return rules;
}

// Qwen 3.5: Qwen 2's expression, but letters include marks, and the last class names what it matches:
// "(?i:'s|…)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|…"
constexpr WordRules kQwen35Words = {.contraction = Contraction::kAnyCase,
                                    .lead = WordLead::kAny,
                                    .letters = kLetter | kMark,
                                    .max_digits = 1,
                                    .others = kPunctuation | kSymbol | kOther,
                                    .tail = "\r\n",
                                    .spaces = Spaces::kLines};

constexpr WordRules kTekkenWords = {.lead = WordLead::kAny,
                                    .word_case = WordCase::kCuts,
                                    .max_digits = 1,
                                    .tail = "\r\n/",
                                    .spaces = Spaces::kLines};

constexpr WordRules kGpt4oWords = {.lead = WordLead::kAny,
                                   .word_case = WordCase::kTrained,
                                   .suffix = Contraction::kAnyCase,
                                   .max_digits = 3,
                                   .tail = "\r\n/",
                                   .spaces = Spaces::kLines};

constexpr WordRules kSeedCoderWords = {.contraction = Contraction::kAnyCase,
                                       .lead = WordLead::kAny,
                                       .max_digits = 1,
                                       .spaces = Spaces::kLines};

constexpr WordRules kUfakzekaWords = {
    .lead = WordLead::kAny, .max_digits = 1, .tail = "\r\n", .spaces = Spaces::kLines};

constexpr WordRules kMiniCpmWords = {.contraction = Contraction::kAnyCase,
                                     .lead = WordLead::kAny,
                                     .max_digits = kAll,
                                     .tail = "\r\n",
                                     .spaces = Spaces::kLines};

// EXAONE MoE: "(?i:'s|…)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|…"
constexpr WordRules kExaoneMoeWords = {.contraction = Contraction::kAnyCase,
                                       .lead = WordLead::kAny,
                                       .max_digits = 1,
                                       .tail = "\r\n/",
                                       .max_tail = 1,
                                       .spaces = Spaces::kLines,
                                       .phrases = true};

// The script Han in Unicode 17.
constexpr CodePoints kHan[] = {{0x2E80, 0x2E99},   {0x2E9B, 0x2EF3},   {0x2F00, 0x2FD5},
                               {0x3005, 0x3005},   {0x3007, 0x3007},   {0x3021, 0x3029},
                               {0x3038, 0x303B},   {0x3400, 0x4DBF},   {0x4E00, 0x9FFF},
                               {0xF900, 0xFA6D},   {0xFA70, 0xFAD9},   {0x16FE2, 0x16FE3},
                               {0x16FF0, 0x16FF6}, {0x20000, 0x2A6DF}, {0x2A700, 0x2B81D},
                               {0x2B820, 0x2CEAD}, {0x2CEB0, 0x2EBE0}, {0x2EBF0, 0x2EE5D},
                               {0x2F800, 0x2FA1D}, {0x30000, 0x3134A}, {0x31350, 0x33479}};

// Kimi K2: "[\p{Han}]+|" and GPT-4o's expression for other letters, with "[\r\n]*" behind signs.
constexpr WordRules kKimiWords = {.lead = WordLead::kAny,
                                  .word_case = WordCase::kTrained,
                                  .suffix = Contraction::kAnyCase,
                                  .max_digits = 3,
                                  .tail = "\r\n",
                                  .spaces = Spaces::kLines,
                                  .apart = kHan};

constexpr WordRules WithSpaces(WordRules rules, Spaces spaces) {
  rules.spaces = spaces;
  return rules;
}

constexpr CutStage Words(const WordRules& rules) {
  return {.next = NextWord, .words = rules};
}

constexpr CutStage Runs(const RunRules& rules) {
  return {.next = NextRun, .runs = rules};
}

constexpr CutStage Numbers(std::uint32_t max_digits) {
  return Runs({.classes = kNumber, .max_characters = max_digits});
}

constexpr CutStage DeepSeekParts(std::string_view tail, Spaces spaces) {
  return {.next = NextDeepSeekPart, .words = {.tail = tail, .spaces = spaces}};
}

// East Asian characters: Hiragana, Katakana and Han in DeepSeek V3; wider ranges in DeepSeek Coder.
constexpr CodePoints kDeepSeek3Asia[] = {{0x3040, 0x30FF}, {0x4E00, 0x9FA5}};
constexpr CodePoints kDeepSeekCoderAsia[] = {{0x0800, 0x9FA5}, {0xAC00, 0xD7FF}};

constexpr CodePoints kAfmoeAsia[] = {
    {0x0E40, 0x0EFF}, {0x1000, 0x109F}, {0x1100, 0x11FF}, {0x1780, 0x17FF}, {0x2F00, 0x2FDF},
    {0x3040, 0x30FF}, {0x3400, 0x4DBF}, {0x4E00, 0x9FFF}, {0xA9E0, 0xA9FF}, {0xAA60, 0xAA7F},
    {0xAC00, 0xD7AF}, {0xF900, 0xFAFF}, {0xFF65, 0xFF9F}};

// Youtu: Hangul; signs of East Asian texts; Bopomofo. (Han and Kana are DeepSeek V3's.)
constexpr CodePoints kYoutuHangul[] = {{0x3131, 0x318E}, {0xAC00, 0xD7A3}};
constexpr CodePoints kYoutuSigns[] = {{0x2014, 0x2014}, {0x2018, 0x2019}, {0x201C, 0x201D},
                                      {0x2026, 0x2026}, {0x3001, 0x303F}, {0xFE30, 0xFE4F},
                                      {0xFF01, 0xFF01}, {0xFF0C, 0xFF0C}, {0xFF1A, 0xFF1B}};
constexpr CodePoints kYoutuBopomofo[] = {{0x3105, 0x312F}};

// DeepSeek LLM: cased letters beyond ASCII; full-width punctuation, quotes and Chinese full stops.
constexpr CodePoints kDeepSeekLlmLetters[] = {
    {0x00B5, 0x00B5},   {0x00C0, 0x00D6},   {0x00D8, 0x00F6},   {0x00F8, 0x01BA},
    {0x01BC, 0x01BF},   {0x01C4, 0x0293},   {0x0295, 0x02AF},   {0x0370, 0x0373},
    {0x0376, 0x0376},   {0x0377, 0x0377},   {0x037B, 0x037D},   {0x037F, 0x037F},
    {0x0386, 0x0386},   {0x0388, 0x038A},   {0x038C, 0x038C},   {0x038E, 0x03A1},
    {0x03A3, 0x03F5},   {0x03F7, 0x0481},   {0x048A, 0x052F},   {0x0531, 0x0556},
    {0x10A0, 0x10C5},   {0x13A0, 0x13F5},   {0x13F8, 0x13FD},   {0x1C90, 0x1CBA},
    {0x1CBD, 0x1CBF},   {0x1D00, 0x1D2B},   {0x1D6B, 0x1D77},   {0x1D79, 0x1D9A},
    {0x1E00, 0x1F15},   {0x1F18, 0x1F1D},   {0x1F20, 0x1F45},   {0x1F48, 0x1F4D},
    {0x1F50, 0x1F57},   {0x1F59, 0x1F59},   {0x1F5B, 0x1F5B},   {0x1F5D, 0x1F5D},
    {0x1F5F, 0x1F7D},   {0x1F80, 0x1FB4},   {0x1FB6, 0x1FBC},   {0x1FBE, 0x1FBE},
    {0x1FC2, 0x1FC4},   {0x1FC6, 0x1FCC},   {0x1FD0, 0x1FD3},   {0x1FD6, 0x1FDB},
    {0x1FE0, 0x1FEC},   {0x1FF2, 0x1FF4},   {0x1FF6, 0x1FFC},   {0x2102, 0x2102},
    {0x2107, 0x2107},   {0x210A, 0x2113},   {0x2115, 0x2115},   {0x2119, 0x211D},
    {0x2124, 0x2124},   {0x2126, 0x2126},   {0x2128, 0x2128},   {0x212A, 0x212D},
    {0x212F, 0x2134},   {0x2139, 0x2139},   {0x213C, 0x213F},   {0x2145, 0x2149},
    {0x214E, 0x214E},   {0x2183, 0x2183},   {0x2184, 0x2184},   {0x2C00, 0x2C7B},
    {0x2C7E, 0x2CE4},   {0x2CEB, 0x2CEE},   {0x2CF2, 0x2CF2},   {0x2CF3, 0x2CF3},
    {0xA640, 0xA66D},   {0xA680, 0xA69B},   {0xA722, 0xA76F},   {0xA771, 0xA787},
    {0xA78B, 0xA78E},   {0xAB70, 0xABBF},   {0xFB00, 0xFB06},   {0xFB13, 0xFB17},
    {0xFF21, 0xFF3A},   {0xFF41, 0xFF5A},   {0x10400, 0x1044F}, {0x104B0, 0x104D3},
    {0x104D8, 0x104FB}, {0x10C80, 0x10CB2}, {0x10CC0, 0x10CF2}, {0x118A0, 0x118DF},
    {0x1E900, 0x1E943}};
constexpr CodePoints kDeepSeekLlmSigns[] = {
    {0x2018, 0x201F}, {0x3000, 0x3002}, {0xFF01, 0xFF0F}, {0xFF1A, 0xFF5E}};
constexpr std::string_view kAsciiLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
// "[!-/:-~]" includes the letters, so that it cuts words such as "né".
constexpr std::string_view kDeepSeekLlmAscii =
    "!\"#$%&'()*+,-./:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~";

constexpr CutStage kGpt2[] = {Words(kGpt2Words)};
constexpr CutStage kStarCoder[] = {Numbers(1), Words(kGpt2Words)};
constexpr CutStage kLlama3[] = {Words(kLlama3Words)};
// Qwen 2, 2.5 and 3: Llama 3's expression with \p{N} for \p{N}{1,3}.
constexpr CutStage kQwen2[] = {Words(WithMaxDigits(kLlama3Words, 1))};
constexpr CutStage kQwen35[] = {Words(kQwen35Words)};
constexpr CutStage kTekken[] = {Words(kTekkenWords)};
constexpr CutStage kGpt4o[] = {Words(kGpt4oWords)};
constexpr CutStage kKimi[] = {Words(kKimiWords)};
constexpr CutStage kTinyAya[] = {
    Numbers(kAll), {.next = NextNumberGroup}, Numbers(3), Words(kGpt4oWords)};
constexpr CutStage kYoutu[] = {Runs({.ranges = kYoutuHangul}), Runs({.ranges = kYoutuSigns}),
                               Runs({.ranges = kYoutuBopomofo}), Runs({.ranges = kDeepSeek3Asia}),
                               Words(WithMaxDigits(kGpt4oWords, 1))};
constexpr CutStage kExaoneMoe[] = {Words(kExaoneMoeWords)};
constexpr CutStage kJais2[] = {Words(WithSpaces(kLlama3Words, Spaces::kPowers))};
// Bloom, and models for Finnish and the languages of the North.
constexpr CutStage kBloom[] = {{.next = NextUnseparated}};
constexpr CutStage kViking[] = {{.next = NextUnseparated}, Numbers(1)};
constexpr CutStage kSuperBpe[] = {Numbers(kAll), {.next = NextTripleRun}, {.next = NextTriple}};
// The published expression for "<sentinel:…>" changes nothing: later stages cut such a text further.
constexpr CutStage kChameleon[] = {
    {.next = NextImageToken},
    {.next = NextIndent},
    Numbers(1),
    Runs({.classes = kPunctuation, .ascii = "$+<=>^`|~", .max_characters = 1}),
    Words(kGpt2Words)};
constexpr CutStage kSeedCoder[] = {Words(kSeedCoderWords)};
constexpr CutStage kUfakzeka[] = {Words(kUfakzekaWords)};
constexpr CutStage kMiniCpm5[] = {Numbers(3), Words(kMiniCpmWords)};
constexpr CutStage kLaguna[] = {{.next = NextLine}, Words(WithMaxDigits(kLlama3Words, 1))};
constexpr CutStage kDeepSeek3[] = {Numbers(3), Runs({.ranges = kDeepSeek3Asia}),
                                   DeepSeekParts("\r\n", Spaces::kLines)};
constexpr CutStage kSpark[] = {Numbers(3), Runs({.ranges = kDeepSeek3Asia}),
                               DeepSeekParts("", Spaces::kLineEnds), Numbers(1)};
// Arcee: numbers in groups of three from their end; runs of scripts without spaces.
constexpr CutStage kAfmoe[] = {Numbers(kAll),
                               {.next = NextNumberGroup},
                               Numbers(3),
                               Runs({.ranges = kAfmoeAsia}),
                               DeepSeekParts("\r\n", Spaces::kLines)};
constexpr CutStage kDeepSeekLlm[] = {
    Runs({.ascii = "\r\n", .max_characters = 1}),
    Runs({.ascii = kAsciiLetters, .ranges = kDeepSeekLlmLetters, .takes_space = true}),
    Runs({.ascii = kDeepSeekLlmAscii, .ranges = kDeepSeekLlmSigns, .takes_space = true}),
    {.next = NextTrailingSpaces},
    Runs({.ranges = kDeepSeekCoderAsia}),
    Numbers(kAll)};
constexpr CutStage kDeepSeekCoder[] = {Runs({.ascii = "\r\n", .max_characters = 1}),
                                       Runs({.classes = kLetter, .takes_space = true}),
                                       Runs({.classes = kPunctuation, .takes_space = true}),
                                       Runs({.ranges = kDeepSeekCoderAsia}), Numbers(1)};
constexpr CutStage kFalcon[] = {Runs({.classes = kPunctuation, .ascii = "$+<=>^~|`"}),
                                Words(kGpt2Words),
                                {.next = NextThreeDigits}};
constexpr CutStage kDefault[] = {Runs({.classes = kPunctuation, .ascii = "$+<=>^~|"}),
                                 Words(kGpt2Words),
                                 Numbers(kAll),
                                 {.next = NextThreeDigits}};

constexpr PreTokenizer IgnoringMerges(std::string_view name, std::span<const CutStage> stages) {
  return {.name = name, .stages = stages, .ignore_merges = true, .add_bos = true};
}

constexpr PreTokenizer WithoutCleaning(std::string_view name, std::span<const CutStage> stages) {
  return {.name = name, .stages = stages, .clean_spaces = false};
}

// Models whose own tokenizers compose texts (NFC).
constexpr PreTokenizer Composing(std::string_view name, std::span<const CutStage> stages) {
  return {.name = name, .stages = stages, .clean_spaces = false, .composes = true};
}

constexpr PreTokenizer kKnown[] = {
    {"default", kDefault},
    // Llama 3, and models that use its expression.
    IgnoringMerges("llama-bpe", kLlama3),
    IgnoringMerges("llama3", kLlama3),
    IgnoringMerges("llama-v3", kLlama3),
    IgnoringMerges("pixtral", kLlama3),
    IgnoringMerges("falcon3", kLlama3),
    IgnoringMerges("falcon-h1", kLlama3),
    IgnoringMerges("lfm2", kLlama3),
    IgnoringMerges("midm-2.0", kLlama3),
    IgnoringMerges("jina-v5-nano", kLlama3),
    {"jais-2", kJais2},
    {"dbrx", kLlama3},
    {"smaug-bpe", kLlama3},
    {"chatglm-bpe", kLlama3},
    {"glm4", kLlama3},
    {"minicpm5", kMiniCpm5, true},
    // GPT-4o's expression, and Tekken's, which has no contractions.
    WithoutCleaning("gpt-4o", kGpt4o),
    WithoutCleaning("llama4", kGpt4o),
    WithoutCleaning("kanana2", kGpt4o),
    WithoutCleaning("talkie", kGpt4o),
    WithoutCleaning("minimax-m2", kGpt4o),
    {"granite-embed-multi-97m", kGpt4o, true, false, false},
    WithoutCleaning("tiny_aya", kTinyAya),
    WithoutCleaning("cohere2moe", kTinyAya),
    {"youtu", kYoutu, true, false, false},
    WithoutCleaning("kimi-k2", kKimi),
    {"tekken", kTekken, true, true, false},
    // Qwen 2's expression, and variants of it. Files of Qwen 2, 2.5 and 3 name it "qwen2".
    Composing("qwen2", kQwen2),
    WithoutCleaning("deepseek-r1-qwen", kQwen2),
    WithoutCleaning("kormo", kQwen2),
    WithoutCleaning("f2llmv2", kQwen2),
    WithoutCleaning("hunyuan", kQwen2),
    WithoutCleaning("solar-open", kQwen2),
    WithoutCleaning("grok-2", kQwen2),
    {"stablelm2", kQwen2},
    {"megrez", kQwen2},
    Composing("qwen35", kQwen35),
    WithoutCleaning("laguna", kLaguna),
    WithoutCleaning("ufakzeka", kUfakzeka),
    WithoutCleaning("bailingmoe", kQwen2),
    WithoutCleaning("bailingmoe2", kQwen2),
    WithoutCleaning("llada-moe", kQwen2),
    WithoutCleaning("seed-coder", kSeedCoder),
    // DeepSeek.
    WithoutCleaning("deepseek-v3", kDeepSeek3),
    WithoutCleaning("hunyuan-dense", kDeepSeek3),
    WithoutCleaning("joyai-llm", kDeepSeek3),
    WithoutCleaning("hy_v4", kDeepSeek3),
    WithoutCleaning("spark2_5", kSpark),
    WithoutCleaning("afmoe", kAfmoe),
    WithoutCleaning("deepseek-coder", kDeepSeekCoder),
    WithoutCleaning("deepseek-llm", kDeepSeekLlm),
    // GPT-2's expression, also with single digits.
    {"gpt-2", kGpt2},
    {"phi-2", kGpt2},
    {"jina-es", kGpt2},
    {"jina-de", kGpt2},
    {"jina-v1-en", kGpt2},
    {"jina-v2-es", kGpt2},
    {"jina-v2-de", kGpt2},
    {"jina-v2-code", kGpt2},
    {"roberta-bpe", kGpt2},
    {"mpt", kGpt2},
    {"olmo", kGpt2},
    {"jais", kGpt2},
    {"exaone4", kGpt2},
    {"gigachat", kGpt2},
    {"a.x-4.0", kGpt2},
    {"mellum", kGpt2},
    {"modern-bert", kGpt2},
    WithoutCleaning("trillion", kGpt2),
    WithoutCleaning("granite-docling", kGpt2),
    WithoutCleaning("smollm", kStarCoder),
    Composing("command-r", kStarCoder),
    {"starcoder", kStarCoder},
    {"refact", kStarCoder},
    {"codeshell", kStarCoder},
    {"exaone", kStarCoder},
    {"minerva-7b", kStarCoder},
    {"mellum2", kStarCoder},
    {"falcon", kFalcon},
    // Others.
    {"exaone-moe", kExaoneMoe},
    {"bloom", kBloom},
    {"gpt3-finnish", kBloom},
    WithoutCleaning("poro-chat", kBloom),
    WithoutCleaning("viking", kViking),
    WithoutCleaning("superbpe", kSuperBpe),
    {"chameleon", kChameleon, false, true, false},
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
  return Unsupported(
      StrCat("pre-tokenizer ", Quoted(name, 64), " is not supported; supported: ", names));
}

}  // namespace kvcache
