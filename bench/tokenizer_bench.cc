// Measures the speed of encoding text and decoding tokens, for each kind of vocabulary.
//
// The vocabularies are trained on invented text (tools/spm_vocabulary). "Words" is text of the same
// language, "Scripts" has every script, "Unknown" has words that were not in the training text, and
// "Prompt2000" is a prompt. Runs of one letter, spaces, digits or an emoji take quadratic time in a
// naive tokenizer; here ten times the bytes must take ten times the time.
//
// Before timing, the benchmark checks that decoding returns the text (except for kind "t5", which
// normalizes runs of spaces).
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "spm_vocabulary/bpe_trainer.h"
#include "spm_vocabulary/charsmap_builder.h"
#include "spm_vocabulary/invented_text.h"
#include "spm_vocabulary/spm_trainer.h"
#include "spm_vocabulary/unigram_trainer.h"
#include "tokenizer/tokenizer.h"

namespace kvcache {
namespace {

using benchmark::State;
using spm_vocabulary::InventedText;

constexpr int kTokens = 32000;
constexpr std::size_t kTextBytes = 1 << 20;

struct Subject {
  TokenizerData data;
  std::unique_ptr<Tokenizer> tokenizer;
};

std::string TrainingText() {
  return InventedText(1).Text(1500000, 50);
}

// Adds tokens that merge runs of a letter.
TokenizerData Spm() {
  TokenizerData trained = spm_vocabulary::BuildSpmVocabulary(TrainingText(), kTokens);
  std::string run = "a";
  for (int n = 2; n <= 32; n *= 2) {
    run += run;
    if (Vocabulary::Make(trained)->Find(run) == kNoToken) {
      spm_vocabulary::AddToken(run, TokenKind::kNormal, -1, &trained);
    }
  }
  return trained;
}

TokenizerData Bpe(std::string_view pre) {
  std::string text = TrainingText();
  for (const char* run : {"a", " ", "7", "\U0001F600"}) {
    for (int i = 0; i < 64; ++i) text += run;
    text += "\n";
  }
  return spm_vocabulary::BuildBpeVocabulary(text, kTokens, pre, {"<s>", "</s>"});
}

TokenizerData Unigram() {
  TokenizerData trained = spm_vocabulary::BuildUnigramVocabulary(TrainingText(), kTokens);
  trained.charsmap = spm_vocabulary::BuildCharsmap(spm_vocabulary::SampleReplacements());
  return trained;
}

TokenizerData Train(const std::string& name) {
  if (name == "spm") return Spm();
  return name == "t5" ? Unigram() : Bpe(name);
}

// Trains a vocabulary on first use, since a filter may skip some.
const Subject& Get(const std::string& name) {
  static std::map<std::string, Subject> subjects;
  Subject& subject = subjects[name];
  if (subject.tokenizer != nullptr) return subject;
  subject.data = Train(name);
  auto tokenizer = MakeTokenizer(subject.data);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "tokenizer_bench: %s\n", tokenizer.status().message().c_str());
    std::exit(1);
  }
  subject.tokenizer = std::move(*tokenizer);
  return subject;
}

std::vector<std::int32_t> CheckedEncode(const Subject& subject, const std::string& text) {
  std::vector<std::int32_t> tokens = *subject.tokenizer->Encode(text);
  const bool normalizes = subject.data.model == "t5";
  if (!normalizes && *subject.tokenizer->Decode(tokens) != text) {
    std::fprintf(stderr, "tokenizer_bench: decoding did not return the text\n");
    std::exit(1);
  }
  return tokens;
}

void Encode(State& state, const Subject& subject, const std::string& text) {
  const auto tokens = CheckedEncode(subject, text);
  for (auto _ : state) benchmark::DoNotOptimize(*subject.tokenizer->Encode(text));
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(text.size()));
  state.counters["bytes/token"] =
      static_cast<double>(text.size()) / static_cast<double>(tokens.size());
}

void Decode(State& state, const Subject& subject, const std::string& text) {
  const auto tokens = CheckedEncode(subject, text);
  for (auto _ : state) benchmark::DoNotOptimize(*subject.tokenizer->Decode(tokens));
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(text.size()));
}

void Load(State& state, const Subject& subject) {
  for (auto _ : state) benchmark::DoNotOptimize(*MakeTokenizer(subject.data));
  const auto tokens = static_cast<std::int64_t>(subject.data.tokens.size());
  state.SetItemsProcessed(state.iterations() * tokens);
}

struct Text {
  std::string name;
  std::string text;
};

std::vector<Text> Texts() {
  std::vector<Text> texts = {{"Words", InventedText(1).Text(kTextBytes, 100)},
                             {"Scripts", InventedText(1).Text(kTextBytes, 0)},
                             {"Unknown", InventedText(77).Text(kTextBytes, 100)}};
  texts.push_back({"Prompt2000", texts[0].text.substr(0, 2000)});
  const struct {
    const char* name;
    const char* unit;
  } runs[] = {{"Letter", "a"}, {"Spaces", " "}, {"Digits", "7"}, {"Emoji", "\U0001F600"}};
  for (const auto& run : runs) {
    for (const std::size_t megabytes : {1, 10}) {
      std::string text;
      while (text.size() < megabytes << 20) text += run.unit;
      texts.push_back({run.name + std::to_string(megabytes) + "MB", std::move(text)});
    }
  }
  return texts;
}

void Register(const std::string& name, const std::vector<Text>& texts) {
  using benchmark::RegisterBenchmark;
  for (const Text& text : texts) {
    RegisterBenchmark((name + "/Encode/" + text.name).c_str(),
                      [name, &text](State& state) { Encode(state, Get(name), text.text); });
  }
  RegisterBenchmark((name + "/Decode/Words").c_str(),
                    [name, &texts](State& state) { Decode(state, Get(name), texts[0].text); });
  RegisterBenchmark((name + "/Load").c_str(), [name](State& state) { Load(state, Get(name)); });
}

}  // namespace
}  // namespace kvcache

int main(int argc, char** argv) {
  using namespace kvcache;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  const std::vector<Text> texts = Texts();
  for (const char* name :
       {"spm", "llama-bpe", "qwen2", "gpt-2", "gpt-4o", "tekken", "deepseek-v3", "t5"}) {
    Register(name, texts);
  }
  benchmark::RunSpecifiedBenchmarks();
}
