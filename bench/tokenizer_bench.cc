// How fast text becomes tokens and tokens become text; and how long a vocabulary takes to load.
//
//   tokenizer_bench [--benchmark_filter=…]
//
// Words and Scripts are text like that on which the vocabulary (32,000 tokens, trained on
// invented text) was trained; Unknown is text of other words; Letter is the worst case for the
// joining: one stretch without a boundary. Every result is checked before it is timed.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "model/tokenizer.h"
#include "spm_vocabulary/invented_text.h"
#include "spm_vocabulary/spm_trainer.h"

namespace kvcache {
namespace {

using spm_vocabulary::InventedText;

constexpr int kTokens = 32000;
constexpr std::size_t kTextBytes = 1 << 20;

const TokenizerData& Data() {
  static const TokenizerData data = [] {
    TokenizerData trained =
        spm_vocabulary::BuildSpmVocabulary(InventedText(1).Text(4000000, 50), kTokens);
    std::string run = "a";
    for (int n = 2; n <= 32; n *= 2) {
      run += run;
      if (Vocabulary::Make(trained)->Find(run) == kNoToken) {
        spm_vocabulary::AddToken(run, TokenKind::kNormal, -1, &trained);
      }
    }
    return trained;
  }();
  return data;
}

const Tokenizer& Trained() {
  static const auto tokenizer = *MakeTokenizer(Data());
  return *tokenizer;
}

void CheckRoundTrip(const std::string& text, const std::vector<std::int32_t>& tokens) {
  if (*Trained().Decode(tokens) == text) return;
  std::fprintf(stderr, "tokenizer_bench: decoding did not give the text back\n");
  std::abort();
}

void BM_Encode(benchmark::State& state, const std::string& text) {
  const auto tokens = *Trained().Encode(text);
  CheckRoundTrip(text, tokens);
  for (auto _ : state) benchmark::DoNotOptimize(*Trained().Encode(text));
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(text.size()));
  state.counters["bytes/token"] =
      static_cast<double>(text.size()) / static_cast<double>(tokens.size());
}

void BM_Decode(benchmark::State& state, const std::string& text) {
  const auto tokens = *Trained().Encode(text);
  CheckRoundTrip(text, tokens);
  for (auto _ : state) benchmark::DoNotOptimize(*Trained().Decode(tokens));
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(text.size()));
}

void BM_Load(benchmark::State& state) {
  const TokenizerData& data = Data();
  for (auto _ : state) benchmark::DoNotOptimize(*MakeTokenizer(data));
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(data.tokens.size()));
}

}  // namespace
}  // namespace kvcache

int main(int argc, char** argv) {
  using namespace kvcache;
  using benchmark::RegisterBenchmark;
  const std::string words = InventedText(1).Text(kTextBytes, 100);
  const std::string scripts = InventedText(1).Text(kTextBytes, 0);
  const std::string unknown = InventedText(77).Text(kTextBytes, 100);
  const std::string prompt = words.substr(0, 2000);
  RegisterBenchmark("Encode/Words", [&](auto& state) { BM_Encode(state, words); });
  RegisterBenchmark("Encode/Scripts", [&](auto& state) { BM_Encode(state, scripts); });
  RegisterBenchmark("Encode/Unknown", [&](auto& state) { BM_Encode(state, unknown); });
  RegisterBenchmark("Encode/Prompt2000", [&](auto& state) { BM_Encode(state, prompt); });
  for (const int megabytes : {1, 10}) {
    RegisterBenchmark(
        ("Encode/Letter" + std::to_string(megabytes) + "MB").c_str(), [=](auto& state) {
          BM_Encode(state, std::string(static_cast<std::size_t>(megabytes) << 20, 'a'));
        });
  }
  RegisterBenchmark("Decode/Words", [&](auto& state) { BM_Decode(state, words); });
  RegisterBenchmark("Load/32k", BM_Load);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}
